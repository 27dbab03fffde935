"""Steady step time of a training that is sharded within each node, against torch's HSDP, in blocks of steps in turn.

Two nodes of two ranks, on this machine. Ours has all that production has on: the launcher, its control threads, the
loader, agreement, loss and random numbers. The peer is the same model under stock torchrun: `fully_shard` over a mesh
of nodes by ranks. Where there are several micro-batches, it adds up the nodes' gradients once, as ours does. Both run
at the same time, and one of them rests while the other one does a block. A row of HSDP against HSDP shows the noise.
Each row goes on until its interval is no wider than one percent to each side, or else to the end of its blocks, which
it says. The interval is the bootstrap's 95 % of the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, launched
from benchmarks.paired import EACH, FEWEST, is_told, paired_row, print_paired
from benchmarks.peer_torchrun import run_agents

SCRIPT = SCRIPTS / "sharded_train.py"
NODES, RANKS = 2, 2
BLOCK_STEPS, WARM_BLOCKS = 10, 3
BAR = 1.03


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        width: Of the transformer's 4 blocks.
        micro: Samples of a micro-batch.
        accumulation: Micro-batches of a rank in a step.
        side: Which side stands in for ours: "ours" or "peer".
    """

    width: int
    micro: int
    accumulation: int
    side: str = "ours"

    @property
    def name(self) -> str:
        """As it is printed."""
        noise = ", HSDP against itself" if self.side == "peer" else ""
        return f"width {self.width}, accumulation {self.accumulation}{noise}"

    @property
    def options(self) -> str:
        """The script's."""
        more = {"batch": self.micro * self.accumulation * NODES * RANKS, "micro": self.micro, "steps": BLOCK_STEPS}
        return json.dumps({"report": "seconds", "layers": 4, "width": self.width, **more})


CASES = (Case(208, 8, 1), Case(208, 8, 4), Case(736, 4, 1), Case(736, 4, 4), Case(208, 8, 1, "peer"))


class Blocks:
    """Has the ranks of one side train in blocks of steps, through pipes.

    Args:
        folder: Where these are.
    """

    def __init__(self, folder: Path) -> None:
        names = ["done", *(f"go-{rank}" for rank in range(NODES * RANKS))]
        for name in names:
            os.mkfifo(folder / name)
        self._done, *self._go = [os.open(folder / name, os.O_RDWR) for name in names]

    def seconds(self) -> float:
        """Waits until all ranks have ended a block; returns the slowest one's seconds for a step.

        Raises:
            TimeoutError: If they don't.
        """
        told, until = b"", time.monotonic() + DEADLINE_SECONDS
        while told.count(b"\n") < len(self._go):
            if not select.select([self._done], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"a block of steps did not end within {DEADLINE_SECONDS:g} s")
            told += os.read(self._done, 4096)
        return max(map(float, told.split())) / BLOCK_STEPS

    def go(self, *, more: bool = True) -> None:
        """Begins a block, or the end of the training."""
        for pipe in self._go:
            os.write(pipe, b"+" if more else b"-")

    def close(self) -> None:
        """Closes the pipes."""
        for pipe in (self._done, *self._go):
            os.close(pipe)


@contextlib.contextmanager
def trained(side: str, case: Case) -> Iterator[Blocks]:
    """Trains one side, which rests when its first block is done."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with contextlib.closing(Blocks(folder)) as blocks, started(side, case, folder):
            yield blocks


@contextlib.contextmanager
def started(side: str, case: Case, folder: Path) -> Iterator[None]:
    """Starts the nodes of one side, and ends them."""
    nodes = f"{NODES}:{NODES}"
    if side == "ours":
        arguments = ("--nodes", nodes, "--nproc-per-node", str(RANKS), "--", SCRIPT, side, folder, case.options)
        with launched(*arguments, environment={"OMP_NUM_THREADS": "1"}) as job:
            yield
            job.process.wait(DEADLINE_SECONDS)
        return
    with run_agents(folder, SCRIPT, [case.options], NODES, RANKS):
        yield


def measure(case: Case, most: int) -> dict[str, Any]:
    """Returns the row of a case, of so many pairs of blocks at most."""
    with trained(case.side, case) as mine, trained("peer", case) as other:
        sides = (mine, other)
        for side in sides:
            side.seconds()  # of the start

        def pair() -> list[float]:
            took = []
            for side in sides:
                side.go()
                took.append(side.seconds())
            return took

        for _ in range(WARM_BLOCKS):
            pair()
        pairs: list[list[float]] = []
        while len(pairs) < most and (len(pairs) < FEWEST or not is_told([ours / peer for ours, peer in pairs])):
            pairs += [pair() for _ in range(min(EACH, most - len(pairs)))]
        for side in sides:
            side.go(more=False)
    ours, peer = zip(*pairs, strict=True)
    return paired_row("sharded overhead", case.name, ours, peer, "ours to peer", BAR)


def main() -> None:
    """Prints a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=400, help="pairs of blocks of a row at most (400)")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    print(f"peer: fully_shard over a mesh of {NODES} x {RANKS}, gloo, AdamW foreach, one thread a rank")
    rows = []
    for case in CASES:
        if options.case not in case.name:
            continue
        row = measure(case, options.blocks)
        print_paired(row)
        rows.append(row)
    finish(rows)


if __name__ == "__main__":
    main()
