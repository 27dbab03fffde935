"""What an epoch's order costs: ours at 10⁹ samples, against a permutation by torch at 10⁷.

A slice of ours is made alone; torch has to make its whole permutation before the first index of it is known. Speeds are
of alternating runs in one process, torch at its defaults. Memory is the peak above an idle process with all imported,
each in a process of its own; it includes the result and all that is used on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import finish
from elastic_launcher.sampling import indices

SAMPLES, PEER_SAMPLES = 10**9, 10**7
LONG, STEP = 2**20, 4096  # indices: of a long slice, and of one optimizer step
BAR = 1_000_000  # indices a second
STEPS_A_RUN = 50  # a step takes far below a millisecond


def ours(samples: int, run: int, count: int) -> None:
    """Makes a slice from the middle of an epoch."""
    indices(samples, 1, run, samples // 2, min(samples, samples // 2 + count))


def peer(run: int) -> None:
    """Makes torch's permutation."""
    torch.randperm(PEER_SAMPLES, generator=torch.Generator().manual_seed(run))


# by name, since it runs in a process of its own
WORKS: dict[str, Callable[[], None]] = {
    "a slice at 10^9": lambda: ours(SAMPLES, 0, LONG),
    "a slice at 10^7": lambda: ours(PEER_SAMPLES, 0, LONG),
    "a step at 10^9": lambda: ours(SAMPLES, 0, STEP),
    "torch's permutation": lambda: peer(0),
}


def timed(work: Callable[[], None]) -> float:
    """Returns how many seconds a work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def kilobytes(field: str) -> int:
    """Returns a field of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def own_peak(work: str) -> None:
    """Prints by how many MB this process grows at most."""
    ours(SAMPLES, 0, 1)  # what the first calls alone allocate
    torch.randperm(2, generator=torch.Generator().manual_seed(0))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    idle = kilobytes("VmRSS")
    WORKS[work]()
    print(json.dumps(max(0, kilobytes("VmHWM") - idle) * 1024 / 1e6))


def peak_megabytes(work: str) -> float:
    """Returns a work's peak of memory, of a process of its own."""
    command = [sys.executable, __file__, "--own-peak", work]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measured(mine: Callable[[int], None], runs: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of ours and of the peer, alternating; the first of each does not count."""
    own, other = [], []
    for run in range(runs + 1):
        own.append(timed(partial(mine, run)))
        other.append(timed(partial(peer, run)))
    return own[1:], other[1:]


def result(case: str, unit: str, mine: list[float], other: list[float], better: float, **more: Any) -> dict[str, Any]:
    """Returns a row; ``better`` is how many times better ours is."""
    a, b = statistics.median(mine), statistics.median(other)
    return {
        "benchmark": "sampling",
        "case": case,
        "ours": float(f"{a:.4g}"),
        "peer": float(f"{b:.4g}"),
        "ratio": float(f"{better:.4g}"),
        "unit": unit,
        "runs": len(mine),
        "ours_range": [float(f"{v:.4g}") for v in (min(mine), max(mine))],
        "peer_range": [float(f"{v:.4g}") for v in (min(other), max(other))],
        **more,
    }


def main() -> None:
    """Prints the table, and the machine's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--own-peak", choices=list(WORKS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.own_peak:
        own_peak(arguments.own_peak)
        return
    memory = {work: round(peak_megabytes(work), 1) for work in WORKS}
    long, whole = measured(lambda run: ours(SAMPLES, run, LONG), arguments.runs)
    speeds = [LONG / seconds for seconds in long]
    peer_speeds = [PEER_SAMPLES / seconds for seconds in whole]

    def steps(run: int) -> None:
        for number in range(STEPS_A_RUN):
            ours(SAMPLES, run * STEPS_A_RUN + number, STEP)

    many, first = measured(steps, arguments.runs)
    waits = [seconds / STEPS_A_RUN for seconds in many]
    rows = [
        result(
            "indices a second",
            "indices/s",
            speeds,
            peer_speeds,
            statistics.median(speeds) / statistics.median(peer_speeds),
            peak_mb=memory["a slice at 10^9"],
            peak_mb_at_1e7=memory["a slice at 10^7"],
            peer_peak_mb=memory["torch's permutation"],
            bar=BAR,
        ),
        result(
            f"until the first {STEP} indices of an epoch are known",
            "s",
            waits,
            first,
            statistics.median(first) / statistics.median(waits),
            peak_mb=memory["a step at 10^9"],
            peer_peak_mb=memory["torch's permutation"],
        ),
    ]
    table = Table("", "ours at 10^9 samples", "torch.randperm at 10^7", box=None)
    fast, other = rows
    table.add_row("M indices/s", f"{fast['ours'] / 1e6:.1f}", f"{fast['peer'] / 1e6:.1f}")
    table.add_row(f"ms to the first {STEP} indices", f"{other['ours'] * 1e3:.2f}", f"{other['peer'] * 1e3:.0f}")
    table.add_row(f"peak MB, {LONG} indices (all, for torch)", f"{fast['peak_mb']}", f"{fast['peer_peak_mb']}")
    table.add_row("the same of a data set of 10^7", f"{fast['peak_mb_at_1e7']}", "")
    table.add_row(f"peak MB, {STEP} indices", f"{other['peak_mb']}", f"{other['peer_peak_mb']}")
    Console(highlight=False, width=100).print(table)
    print(f"medians of {arguments.runs} alternating runs; the bar is {BAR / 1e6:.0f} M indices/s")
    finish(rows)


if __name__ == "__main__":
    main()
