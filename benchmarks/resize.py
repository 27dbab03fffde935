"""Measures the pause of the training when its size changes: in process, against stock torchrun with checkpoints.

Pause: the survivor's longest gap between optimizer steps around the change, minus the median step at the size that asks
more of it: the longest of the gap that ends at the change and the AROUND next ones.
The peer is torchrun's c10d rendezvous at its best valid settings (printed), the same model, a checkpoint each 10 steps;
its survivors are the ranks of the agent that stays.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from benchmarks.common import SCRIPTS, finish, in_turn, launched, options_of, row, stamps, usual, wait_for, write_hint
from benchmarks.peer_torchrun import DESCRIBED, end_agents, free_port, torchrun_agent

SCRIPT = SCRIPTS / "resize_train.py"
SETTLED = 12  # steps between two changes
AROUND = 3  # gaps after a change that may still be longer for it


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        name: As it is printed.
        megabytes: Of the model and its Adam state.
        batch: Samples of a step.
        rows: Of a sample.
        item: Seconds that loading a sample takes.
        workers: Loader workers.
        barred: Whether there is a bar.
    """

    name: str
    megabytes: int
    batch: int
    rows: int = 1
    item: float = 0.0
    workers: int = 0
    barred: bool = True

    @property
    def arguments(self) -> list[str]:
        """The script's arguments behind side and folder."""
        return [str(value) for value in (self.megabytes, self.batch, self.rows, self.item, self.workers)]


CASES = [
    Case("25 MB", 25, 400),
    Case("300 MB", 300, 256),
    Case("25 MB, 2 workers of 20 ms an item", 25, 6, rows=80, item=0.02, workers=2),
    Case("300 MB, short steps", 300, 16, barred=False),
]


def longest_gap(rows: list[dict[str, Any]], change: float, size: int) -> float:
    """Returns the longest gap around a moment, minus the median step at a size."""
    gaps = [(b["t"] - a["t"], b["t"], b["w"]) for a, b in zip(rows, rows[1:], strict=False)]
    step = statistics.median([gap for gap, _, w in gaps if w == size])
    near = [gap for gap, at, _ in gaps if at >= change]
    return max(near[: AROUND + 1]) - step


def ours(case: Case) -> tuple[float, float, float]:
    """Returns the pauses of one grow and one shrink, and the median step at one rank."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        hints = folder / "hints.json"
        write_hint(hints, 1)
        with launched("--nodes", "1:2", "--hints", hints, "--", SCRIPT, "ours", folder, *case.arguments) as job:
            job.wait_for("steps", lambda: any(len(rows) > SETTLED for rows in stamps(folder).values()))
            first = next(iter(stamps(folder)))
            write_hint(hints, 2)
            grown = job.event("generation_formed", lambda e: e["world_size"] == 2)
            job.wait_for("steps", lambda: sum(r["w"] == 2 for r in stamps(folder)[first]) > SETTLED)
            job.notice(2)
            job.event("generation_formed", lambda e: e.generation == grown.generation + 1)
            job.wait_for(
                "steps",
                lambda: sum(r["w"] == 1 and r["step"] > grown["first_step"] for r in stamps(folder)[first]) > AROUND,
            )  # soon, another node takes the place of the one that left
            rows = stamps(folder)[first]
    entered = next(r["t"] for r in rows if r["w"] == 2)
    left = [r["t"] for r in rows if r["w"] == 2][-1]
    alone = [b["t"] - a["t"] for a, b in zip(rows, rows[1:], strict=False) if a["w"] == b["w"] == 1]
    return (
        longest_gap(rows, entered, 1),
        longest_gap([r for r in rows if r["t"] >= left], left, 1),
        statistics.median(alone),
    )


def peer(case: Case) -> tuple[float, float]:
    """Returns stock torchrun's pauses of one grow and one shrink."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        port = free_port()
        agents = [torchrun_agent(port, folder, SCRIPT, case.arguments, "1:2", host=True)]
        try:

            def rows() -> list[dict[str, Any]]:
                return sorted((r for one in stamps(folder).values() for r in one), key=lambda r: r["t"])

            wait_for("steps", lambda: len(rows()) > SETTLED)
            agents.append(torchrun_agent(port, folder, SCRIPT, case.arguments, "1:2", host=False))
            wait_for("steps of two", lambda: sum(r["w"] == 2 for r in rows()) > 4 * SETTLED)
            grown = rows()
            told = time.monotonic()
            agents[1].send_signal(signal.SIGTERM)
            wait_for("steps of one", lambda: sum(r["w"] == 1 and r["t"] > told for r in rows()) > SETTLED)
            after = rows()
        finally:
            end_agents(agents)
    alone = [r["t"] for r in grown if r["w"] == 1]
    step = usual(grown, 1)
    grow = next(r["t"] for r in grown if r["w"] == 2) - alone[-1] - step
    last_of_two = max(r["t"] for r in after if r["w"] == 2)
    return grow, min(r["t"] for r in after if r["w"] == 1 and r["t"] > last_of_two) - last_of_two - step


def _exchange(rank: int, port: int, results: Any) -> None:
    from elastic_launcher.torch.collectives.group import build_group

    with socket.create_server(("127.0.0.1", port)) if rank == 0 else contextlib.nullcontext() as listener:
        own = listener is not None
        store = torch.distributed.TCPStore(
            "127.0.0.1",
            port,
            is_master=own,
            wait_for_workers=False,
            **({"master_listen_fd": listener.detach()} if listener is not None else {}),
        )
    began = time.monotonic()
    group = build_group(f"127.0.0.1:{port}", 1, rank, 2, 20.0, torch.device("cpu"))
    group.all_reduce(torch.zeros(1)).wait()
    built = time.monotonic() - began
    data = torch.ones(32 * 2**20)  # 128 MB
    for _ in range(2):
        group.all_reduce(torch.zeros(1)).wait()
        began = time.monotonic()
        if rank == 0:
            group.send(data, 1, 5)
        else:
            group.recv(data, 0, 5)
        group.all_reduce(torch.zeros(1)).wait()
    if rank == 0:
        results.put((built, data.numel() * 4 / (time.monotonic() - began)))
    del store


def physics() -> tuple[float, float]:
    """Returns how long a group of two takes to build, and its bandwidth in bytes per second."""
    context = mp.get_context("spawn")
    results = context.Queue()
    port = free_port()
    processes = [context.Process(target=_exchange, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    built, bandwidth = results.get(timeout=60)
    for process in processes:
        process.join()
    return built, bandwidth


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    built, bandwidth = physics()
    print(f"group of two: {built * 1000:.0f} ms, loopback {bandwidth / 1e9:.2f} GB/s")
    print(DESCRIBED)
    rows = []
    for case, found, theirs in in_turn(CASES, options, ours, peer):
        step = statistics.median(f[2] for f in found)
        for number, change in enumerate(("grow 1 to 2", "shrink 2 to 1")):
            limit = built + (case.megabytes * 2**20 / bandwidth if number == 0 else 0.0)
            hidden = max(0.0, case.megabytes * 2**20 / bandwidth - step) if number == 0 else 0.0
            one = row(
                "resize",
                [f[number] for f in found],
                [t[number] for t in theirs],
                "seconds of pause",
                case=f"{change}, {case.name}",
                step=round(step, 3),
                limit=round(limit, 4),
                bar=round((0.1 + hidden) if number == 0 else 0.05, 3) if case.barred else None,
            )
            times = f"ours {one['ours']:.3f} s, peer {one['peer']:.2f} s, {one['ratio']:.0f} times less"
            print(f"{one['case']}: {times}; all: {one['ours_all']}", flush=True)
            rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
