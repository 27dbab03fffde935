"""Measures the pause of the training when a node or the launcher is killed: against stock torchrun with checkpoints,
and torchft where it is installed.

Stand-still: from SIGKILL of the node's processes to the slowest survivor's first completed step of the ranks that are
left, minus the median step, which is what redoing the unfinished step takes. For torchrun it is the first step that
had not been done before: it goes back to its last checkpoint, one each 10 steps. torchft drops the unfinished step's
samples, and its lighthouse is not killed. A peer that does no step within DEAD_SECONDS is shown as dead. Of the
launcher, which is killed and started again: the longest step of any rank from its end until some steps after it has
taken the job over, minus the median one; and the same of as many further steps, in which nothing happens.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peer_torchft as torchft
from benchmarks.common import SCRIPTS, finish, in_turn, kill, launched, options_of, row, stamps, usual, wait_for
from benchmarks.peer_torchrun import DESCRIBED, end_agents, free_port, torchrun_agent

SCRIPT = SCRIPTS / "resize_train.py"
SETTLED = 12  # steps before the kill
DEAD_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """What is trained, on how many nodes, and which of them is killed.

    Attributes:
        nodes: Nodes of one rank.
        victim: The rank that is killed.
        workers: Loader workers, of 50 ms an item where there are some.
    """

    nodes: int
    victim: int
    workers: int

    @property
    def name(self) -> str:
        """As it is printed."""
        loader = f", {self.workers} workers of 50 ms an item" if self.workers else ""
        return f"rank {self.victim} of {self.nodes} killed{loader}"

    @property
    def arguments(self) -> list[str]:
        """The script's arguments behind side and folder: 25 MB of model and Adam state, and samples to its workers."""
        samples, rows, item = (2 * self.nodes, 80, 0.05) if self.workers else (160, 1, 0.0)
        return [str(value) for value in (25, samples, rows, item, self.workers)]


CASES = [Case(nodes, victim, workers) for nodes in (3, 5) for workers in (0, 2) for victim in range(nodes)]
LAUNCHER = "launcher killed and started again"


def ours(case: Case) -> float:
    """Returns our pause."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        size = f"{case.nodes}:{case.nodes}"
        with launched("--nodes", size, "--", SCRIPT, "ours", folder, *case.arguments) as job:
            members = job.event("generation_formed", lambda e: e["world_size"] == case.nodes)["members"]
            job.wait_for("steps", lambda: any(len(rows) > SETTLED for rows in stamps(folder).values()))
            before = set(stamps(folder))
            killed = kill(job.node_pid(members[case.victim]["node"]))

            def after() -> dict[str, float]:
                """The survivors' first steps after the kill, by process."""
                found = {}
                for pid, rows in stamps(folder).items():
                    times = [r["t"] for r in rows if r["w"] == case.nodes - 1 and r["t"] > killed]
                    if pid in before and times:
                        found[pid] = times[0]
                return found

            job.wait_for("a step of the survivors", lambda: len(after()) == case.nodes - 1)
            step = usual(max(stamps(folder).values(), key=len), case.nodes)
            return max(after().values()) - killed - step


def launcher() -> tuple[float, float]:
    """Returns the pause where the launcher is killed, is away for some steps, and the job is taken over.

    And that of as many steps in which nothing happens.

    Raises:
        RuntimeError: If a step was lost, or a rank restarted.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        case = Case(3, 0, 0)
        with launched("--nodes", "3:3", "--", SCRIPT, "ours", folder, *case.arguments) as job:

            def further(count: int) -> bool:
                """Whether every rank has done so many steps more."""
                found = stamps(folder)
                return len(found) == case.nodes and all(
                    len(rows) > len(before.get(pid, ())) + count for pid, rows in found.items()
                )

            before: dict[str, list[dict[str, Any]]] = {}
            job.event("generation_formed", lambda e: e["world_size"] == case.nodes)
            job.wait_for("steps", lambda: further(SETTLED))
            killed = time.monotonic()
            job.process.kill()
            job.process.wait()
            before = stamps(folder)
            wait_for("steps without a launcher", lambda: further(SETTLED))
            job.start()
            job.event("coordinator_adopted")
            before = stamps(folder)
            job.wait_for("steps under the new launcher", lambda: further(SETTLED))
            before = stamps(folder)
            disturbed = max(sum(r["t"] > killed for r in rows) for rows in before.values())
            job.wait_for("as many steps again", lambda: further(disturbed))
            longest, undisturbed = [], []
            for pid, rows in stamps(folder).items():
                steps = [r["step"] for r in rows]
                if steps != list(range(steps[0], steps[0] + len(steps))):
                    raise RuntimeError(f"steps were lost or done again: {steps}")
                times = [r["t"] for r in rows]
                gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
                step, since, until = usual(rows, case.nodes), sum(t <= killed for t in times), len(before[pid])
                longest.append(max(gaps[since - 1 : until - 1]) - step)
                undisturbed.append(max(gaps[until - 1 : until - 1 + disturbed]) - step)
            return max(longest), max(undisturbed)


def of_torchrun(case: Case) -> float | None:
    """Returns stock torchrun's, or None if it is dead."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        port = free_port()
        agents = [
            torchrun_agent(port, folder, SCRIPT, case.arguments, f"1:{case.nodes}", host=number == 0)
            for number in range(case.nodes)
        ]
        try:
            running, step = settled(case, folder)
            done = max(rows[-1]["step"] for rows in running.values())
            killed = kill(agents.pop(case.victim).pid)

            def further() -> list[float]:
                """When each process that was started since did its first step that had not been done before."""
                found = [rows for pid, rows in stamps(folder).items() if pid not in running]
                return [next((r["t"] for r in rows if r["step"] > done), 0.0) for rows in found]

            return stand_still(case, killed, step, further)
        finally:
            end_agents(agents)


def of_torchft(case: Case) -> float | None:
    """Returns torchft's, or None if it is dead."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with torchft.replicas(case.nodes, folder, SCRIPT, case.arguments) as started:
            running, step = settled(case, folder)
            victim = started[case.victim].pid
            survivors = [pid for pid in running if not pid.endswith(f"-{victim}")]
            killed = kill(victim)

            def further() -> list[float]:
                """When each survivor did its first step without the one that was killed."""
                found = stamps(folder)
                return [
                    next((r["t"] for r in found[pid] if r["t"] > killed and r["w"] == case.nodes - 1), 0.0)
                    for pid in survivors
                ]

            return stand_still(case, killed, step, further)


def settled(case: Case, folder: Path) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """Waits until a peer's processes have done some steps; returns their stamps, and the median step in seconds."""

    def found() -> bool:
        full = [rows for rows in stamps(folder).values() if rows[-1]["w"] == case.nodes]
        return len(full) == case.nodes and all(len(rows) > SETTLED for rows in full)

    wait_for("steps", found)
    running = stamps(folder)
    return running, usual(max(running.values(), key=len), case.nodes)


def stand_still(case: Case, killed: float, step: float, further: Callable[[], list[float]]) -> float | None:
    """Returns how long a peer's slowest survivor stood still, or None if it is dead.

    Args:
        case: What it is.
        killed: When its node was.
        step: The median step in seconds.
        further: Looks when the survivors went on; 0 for one that has not.
    """
    try:
        found = wait_for(
            "a step of the survivors",
            lambda: times if len(times := further()) == case.nodes - 1 and all(times) else None,
            DEAD_SECONDS,
        )
    except TimeoutError:
        return None
    return max(found) - killed - step


PEERS = {"torchrun": of_torchrun} | ({"torchft": of_torchft} if torchft.INSTALLED else {})


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    print(DESCRIBED, torchft.DESCRIBED, sep="\n")
    rows = []
    for case, found, theirs in in_turn(CASES, options, ours, lambda case: [peer(case) for peer in PEERS.values()]):
        said = [f"{case.name}: ours {statistics.median(found):.3f} s"]
        for name, seconds in zip(PEERS, zip(*theirs, strict=True), strict=True):
            alive = [one for one in seconds if one is not None]
            dead = len(seconds) - len(alive)
            one = row(
                "failure", found, alive or [DEAD_SECONDS], "seconds", case=case.name, of=name, peer_dead=dead, bar=0.5
            )
            if alive:
                said.append(f"{name} {one['peer']:.2f} s, {one['ratio']:.0f} times less")
            else:
                one["peer"] = one["ratio"] = None
            if dead:
                said.append(f"{name} dead in {dead} of {len(seconds)} (no step within {DEAD_SECONDS:.0f} s)")
            rows.append(one)
        print(", ".join(said), flush=True)
    if not options.case or options.case in LAUNCHER:
        found = [launcher() for _ in range(options.runs)]
        killed, undisturbed = zip(*found, strict=True)
        one = row("failure", list(killed), list(undisturbed), "seconds (peer: nothing happens)", case=LAUNCHER)
        print(f"{LAUNCHER}: {one['ours']:.3f} s, where nothing happens {one['peer']:.3f} s")
        rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
