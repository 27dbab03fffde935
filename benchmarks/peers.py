"""How far other rules of elastic batches are from the batch that was asked for, and how long another system rescales.

Run:AI's rule and AdaptDL's are written down here as formulas, from their code: Run:AI takes
``steps = max(1, G // (M * W))`` micro-batches of ``G // (steps * W)`` samples on each of W ranks; AdaptDL takes
``ceil(B / W)`` samples on each rank at once, and refuses a bound per GPU below B. Ours is `elastic_launcher.batch`.

AdaptDL's rescale time is a figure of our own measurement on another day (1 to 2 ranks, 2 idle cores, gloo, without the
part of Kubernetes), since it does not install beside this torch; ours is measured here: `benchmarks.resize`, 25 MB.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.common import finish, row
from benchmarks.resize import CASES, ours
from elastic_launcher.batch import plan_step

ADAPTDL_RESCALES = (8.5, 8.6, 8.3)  # seconds, 1 to 2 ranks, from the last old step to the first new one
BAR = 10

Outcome = tuple[int, int] | None
"""Samples of a step over all ranks, and of the largest micro-batch; None where the rule refuses."""


def grid() -> Iterator[tuple[int, int, int]]:
    """Yields global batches, most samples per GPU and world sizes."""
    for batch in (32, 48, 64, 96, 100, 128, 192, 250, 256, 384, 500, 512, 1000, 1024):
        for most in (1, 3, 4, 8, 10, 16, 24, 32, 48, 64, 100, 128):
            for world_size in range(1, 17):
                yield batch, most, world_size


def runai(batch: int, most: int, world_size: int) -> Outcome:
    """Run:AI's rule."""
    steps = max(1, batch // (most * world_size))
    micro = batch // (steps * world_size)
    return steps * world_size * micro, micro


def adaptdl(batch: int, most: int, world_size: int) -> Outcome:
    """AdaptDL's rule."""
    if most < batch:
        return None
    micro = math.ceil(batch / world_size)
    return micro * world_size, micro


def adaptdl_unbound(batch: int, most: int, world_size: int) -> Outcome:
    """AdaptDL's rule where no bound is given to it."""
    return adaptdl(batch, batch, world_size)


def elastic(batch: int, most: int, world_size: int) -> Outcome:
    """Our rule."""
    shares = plan_step(batch, most, world_size).shares
    return sum(sum(share.micro_batches) for share in shares), max(max(s.micro_batches, default=0) for s in shares)


def judge(name: str, rule: Callable[[int, int, int], Outcome]) -> dict[str, Any]:
    """Returns a rule's row."""
    cases = list(grid())
    outcomes = [rule(*case) for case in cases]
    taken = [(case, one) for case, one in zip(cases, outcomes, strict=True) if one is not None]
    errors = [abs(one[0] - batch) / batch for (batch, _, _), one in taken]
    return {
        "benchmark": "batch error",
        "rule": name,
        "largest_error": round(max(errors, default=math.nan), 4),
        "unit": "share of the batch, and of the cases",
        "mean_error": round(sum(errors) / max(len(errors), 1), 4),
        "wrong_batch": round(sum(error > 0 for error in errors) / len(cases), 4),
        "over_the_limit": round(sum(one[1] > most for (_, most, _), one in taken) / len(cases), 4),
        "refused": round((len(cases) - len(taken)) / len(cases), 4),
        "cases": len(cases),
    }


RULES: dict[str, Callable[[int, int, int], Outcome]] = {
    "elastic-launcher": elastic,
    "Run:AI": runai,
    "AdaptDL": adaptdl,
    "AdaptDL without a bound per GPU": adaptdl_unbound,
}


def main() -> None:
    """Prints a row a rule, and one of the rescale time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    rows = [judge(name, rule) for name, rule in RULES.items()]
    print(f"{'rule':34}{'wrong batch':>12}{'largest':>9}{'mean':>8}{'over m':>8}{'refused':>9}")
    for one in rows:
        shares = (one["wrong_batch"], one["largest_error"], one["mean_error"], one["over_the_limit"], one["refused"])
        wrong, largest, mean, over, refused = (f"{share:.1%}" for share in shares)
        print(f"{one['rule']:34}{wrong:>12}{largest:>9}{mean:>8}{over:>8}{refused:>9}")
    if rows[0]["wrong_batch"] or rows[0]["over_the_limit"] or rows[0]["refused"]:
        raise SystemExit("our own rule breaks its invariant")
    pauses = [ours(CASES[0])[0] for _ in range(runs)]
    known = "AdaptDL, from our notes: measured on another day"
    rescale = row("rescale 1 to 2 ranks", pauses, ADAPTDL_RESCALES, "seconds", peer_source=known, bar=BAR)
    print(f"rescale 1 to 2 ranks: {rescale['ours']:.3f} s, {rescale['peer']:.1f} s ({known}): {rescale['ratio']:.0f}x")
    finish([*rows, rescale])


if __name__ == "__main__":
    main()
