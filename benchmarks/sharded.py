"""Measures the pause of a training that is sharded within each node, when a node comes, leaves, or is lost.

Two nodes of two ranks, on this machine. The peer is stock torchrun at its best valid settings (printed), the same model
with torch's HSDP, and distributed checkpoints, of which one is begun each 10 steps, beside the training.

Our pause at a resize is that of `benchmarks.resize`, and at a loss that of `benchmarks.failure`: until the slowest
survivor's first completed step. The peer's counts from the kill, or from the last step before a resize, until all ranks
have completed a step that had not been done before; it is changed in the middle between two checkpoints. The median
step is subtracted. Printed too is the peer's time until its first step of any kind, which may be one done again.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import (
    SCRIPTS,
    Job,
    finish,
    in_turn,
    kill,
    launched,
    options_of,
    row,
    stamps,
    usual,
    wait_for,
    write_hint,
)
from benchmarks.peer_torchrun import DESCRIBED, end_agents, free_port, torchrun_agent
from benchmarks.resize import AROUND, SETTLED, longest_gap

SCRIPT = SCRIPTS / "sharded_train.py"
RANKS = 2  # of a node
BOTH = 2 * RANKS
CHECKPOINT_EVERY = 10
CHANGES = ("grow 1 to 2 nodes", "a node killed", "a rank killed", "shrink 2 to 1 nodes")
BAR = 20  # times less than the peer
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        megabytes: Of the whole model and its Adam state.
        width: Of the transformer's 4 blocks.
        batch: Samples of a step.
    """

    megabytes: int
    width: int
    batch: int

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.megabytes} MB"

    @property
    def options(self) -> str:
        """The script's."""
        more = {"micro": self.batch, "save_every": CHECKPOINT_EVERY}
        return json.dumps({"report": "stamps", "layers": 4, "width": self.width, "batch": self.batch, **more})


CASES = [Case(25, 208, 32), Case(300, 736, 16)]


def settled(folder: Path, size: int, count: int, without: set[str]) -> list[str]:
    """Returns the newest processes, none of ``without``, that have trained for a while at a size; none if there are not
    so many of them.
    """
    found = {pid: rows for pid, rows in stamps(folder).items() if pid not in without}
    known = [pid for pid, rows in found.items() if sum(r["w"] == size for r in rows) > SETTLED]
    known.sort(key=lambda pid: found[pid][-1]["t"])
    return known[-count:] if len(known) >= count else []


def times(rows: Rows, since: float, size: int) -> list[float]:
    """Returns when a process did its steps at a size after a moment."""
    return [r["t"] for r in rows if r["t"] > since and r["w"] == size]


def newest_nodes(job: Job) -> list[int]:
    """Returns the nodes of the newest generation, one entry for each of its ranks."""
    formed = [event for event in job.events() if event.kind == "generation_formed"]
    return [member["node"] for member in formed[-1]["members"]]


def ours(case: Case) -> list[float]:
    """Returns our pause at each change."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        hints = folder / "hints.json"
        write_hint(hints, RANKS)
        arguments = ("--nodes", "1:2", "--nproc-per-node", str(RANKS), "--hints", hints)
        with launched(*arguments, "--", SCRIPT, "ours", folder, case.options) as job:
            stay = job.wait_for("steps of a node", lambda: settled(folder, RANKS, RANKS, set()))
            first = newest_nodes(job)[0]
            gone = set(stay)

            def staying(since: float, size: int, steps: int) -> list[Rows]:
                """Waits for some steps of the ranks that stay; returns their stamps."""

                def rows() -> list[Rows]:
                    found = [stamps(folder)[pid] for pid in stay]
                    return found if all(len(times(one, since, size)) >= steps for one in found) else []

                found: list[Rows] = job.wait_for(f"steps of {size} ranks", rows)
                return found

            def resized(told: float, size: int) -> float:
                """Returns the longest pause at a resize."""
                rows = staying(told, size, AROUND + 1)
                return max(longest_gap(one, times(one, told, size)[0], RANKS) for one in rows)

            def lost(killed: float) -> float:
                """Returns how long the slowest rank stood still after a kill."""
                rows = staying(killed, RANKS, 1)
                return max(times(one, killed, RANKS)[0] for one in rows) - killed - usual(rows[0], BOTH)

            def second() -> tuple[int, int]:
                """Waits for a second node; returns it, and the process of one of its ranks."""
                new = job.wait_for("steps of both nodes", lambda: settled(folder, BOTH, RANKS, gone))
                gone.update(new)
                return next(node for node in newest_nodes(job) if node != first), int(new[0])

            grown = resized(write_hint(hints, BOTH), BOTH)
            node_lost = lost(kill(job.node_pid(second()[0])))
            rank = second()[1]
            killed = time.monotonic()
            os.kill(rank, signal.SIGKILL)
            rank_lost = lost(killed)
            node = second()[0]
            told = time.monotonic()
            job.notice(node)
            return [grown, node_lost, rank_lost, resized(told, RANKS)]


def peer(case: Case) -> list[tuple[float, float]]:
    """Returns stock torchrun's pause at each change: until a step that is new, and until one of any kind."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        port = free_port()
        old: set[str] = set()

        def agent(*, host: bool) -> subprocess.Popen[bytes]:
            return torchrun_agent(port, folder, SCRIPT, [case.options], "1:2", host=host, ranks=RANKS)

        def midway(size: int) -> list[str]:
            """Waits until a number of ranks is in the middle between two checkpoints; returns their processes."""

            def found() -> list[str]:
                running = settled(folder, size, size, old)
                step = stamps(folder)[running[0]][-1]["step"] if running else 0
                return running if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY // 2 else []

            running: list[str] = wait_for(f"steps of {size} ranks", found)
            return running

        def paused(running: list[str], size: int, killed: float | None = None) -> tuple[float, float]:
            """Waits until processes are replaced by a number of others, which have gone further."""

            def further() -> tuple[float, float] | None:
                found = stamps(folder)
                before = [found[pid] for pid in running]
                done, ended = max(rows[-1]["step"] for rows in before), max(rows[-1]["t"] for rows in before)
                new = [rows for pid, rows in found.items() if pid not in running and pid not in old]
                new = [rows for rows in new if rows[-1]["w"] == size and rows[-1]["step"] > done]
                if len(new) < size:
                    return None
                away = (ended if killed is None else killed) + usual(before[0], before[0][-1]["w"])
                reached = max(next(r["t"] for r in rows if r["step"] > done) for rows in new)
                return reached - away, max(rows[0]["t"] for rows in new) - away

            found: tuple[float, float] = wait_for(f"new steps of {size} ranks", further)
            old.update(running)
            return found

        agents = [agent(host=True)]
        try:
            running = midway(RANKS)
            agents.append(agent(host=False))
            grown = paused(running, BOTH)
            running = midway(BOTH)
            node_lost = paused(running, RANKS, kill(agents.pop().pid))
            running = midway(RANKS)
            agents.append(agent(host=False))
            paused(running, BOTH)
            running = midway(BOTH)
            killed = time.monotonic()
            os.kill(int(running[0]), signal.SIGKILL)
            rank_lost = paused(running, BOTH, killed)
            running = midway(BOTH)
            agents[1].send_signal(signal.SIGTERM)
            return [grown, node_lost, rank_lost, paused(running, RANKS)]
        finally:
            end_agents(agents)


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    print(f"{DESCRIBED}, HSDP of {RANKS} ranks a node, torch.distributed.checkpoint.async_save")
    rows = []
    for case, found, theirs in in_turn(CASES, options, ours, peer):
        for change, mine, others in zip(CHANGES, zip(*found, strict=True), zip(*theirs, strict=True), strict=True):
            new, soonest = zip(*others, strict=True)
            one = row("sharded", mine, new, "seconds of pause", case=f"{change}, {case.name}", bar=BAR)
            one["peer_any_step"] = round(statistics.median(soonest), 4)
            print(
                f"{one['case']}: ours {one['ours']:.3f} s, peer {one['peer']:.2f} s, {one['ratio']:.0f} times less; "
                f"peer's first step of any kind {one['peer_any_step']:.2f} s; all: {one['ours_all']}",
                flush=True,
            )
            rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
