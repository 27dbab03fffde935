"""What a step costs with `deterministic=`, against the same script without it, on as many ranks of plain torchrun.

Each row names the ranks and the virtual ranks; its ratio is the median of pairs of runs. Micro-batches have the
same sizes on both sides, so that what differs is the exchange of the gradient, the additions, and torch's deterministic
algorithms. There are 4 layers of 1024 (17 MB of gradient) and a batch of 48 in micro-batches of at most 8. On a machine
that others use at the same time, the ratio of CPU times says more; it leaves out that the ranks wait for each other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, in_turn, options_of, row

STEPS = 30


@dataclass(frozen=True, slots=True)
class Case:
    """A number of ranks and of virtual ranks."""

    ranks: int
    virtual_ranks: int

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.ranks} ranks, {self.virtual_ranks} virtual ranks"


CASES = (Case(1, 1), Case(1, 2), Case(1, 6), Case(2, 2), Case(2, 6), Case(2, 3))


def step_seconds(ranks: int, virtual_ranks: int) -> tuple[float, float]:
    """Returns the median step of one run, and the median of what it took of rank 0's CPU."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    command = [sys.executable, *torchrun, str(SCRIPTS / "bitwise_train.py"), str(STEPS), str(virtual_ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True
    )
    seconds, cpu = map(float, done.stdout.split()[-2:])
    return seconds, cpu


def middle(ours: Iterable[float], peer: Iterable[float]) -> float:
    """Returns the median of the ratios of pairs."""
    return round(statistics.median(mine / other for mine, other in zip(ours, peer, strict=True)), 2)


def main() -> None:
    """Prints a row for each case."""
    rows = []
    runs = in_turn(
        CASES,
        options_of(__doc__),
        lambda case: step_seconds(case.ranks, case.virtual_ranks),
        lambda case: step_seconds(case.ranks, 0),
    )
    for case, ours, peer in runs:
        (mine, own), (theirs, their) = zip(*ours, strict=True), zip(*peer, strict=True)
        found = row("bitwise", mine, theirs, "seconds a step (ratio: ours to peer)", case=case.name)
        found |= {"ratio": middle(mine, theirs), "cpu_ratio": middle(own, their)}
        print(
            f"{case.name}: {found['ours']:.4f} s, without {found['peer']:.4f} s, ratio {found['ratio']}; "
            f"CPU time of rank 0: ratio {found['cpu_ratio']}",
            flush=True,
        )
        rows.append(found)
    finish(rows)


if __name__ == "__main__":
    main()
