"""What benchmarks of a steady step share: pairs of blocks of steps, in turn, until their ratio is known well."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

WIDTH = 0.01  # to each side
FEWEST, EACH = 30, 10  # pairs of blocks before the interval is looked at, and from then on


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def is_told(ratios: list[float]) -> bool:
    """Whether the interval is narrow enough to tell one percent from nothing."""
    low, high = interval(ratios)
    return high - low <= 2 * WIDTH


def paired_row(
    benchmark: str, case: str, ours: Sequence[float], peer: Sequence[float], of: str, bar: float, **more: Any
) -> dict[str, Any]:
    """Returns the row of a case, from the seconds of a step in each pair of blocks; ``of`` says what is divided."""
    ratios = [mine / other for mine, other in zip(ours, peer, strict=True)]
    return {
        "benchmark": benchmark,
        "case": case,
        "ours": round(statistics.median(ours), 5),
        "peer": round(statistics.median(peer), 5),
        "ratio": round(statistics.median(ratios), 4),
        "interval": [round(end, 4) for end in interval(ratios)],
        "unit": f"seconds a step (ratio: {of})",
        "told": is_told(ratios),
        "runs": len(ratios),
        **more,
        "bar": bar,
    }


def print_paired(row: dict[str, Any]) -> None:
    """Prints the row of a case, in a line."""
    least, most = row["interval"]
    short = "" if row["told"] else ", too noisy to tell one percent"
    print(f"{row['case']}: {row['ratio']:.3f} ({least:.3f} to {most:.3f}), {row['runs']} pairs{short}", flush=True)
