"""Which samples of lanes each step has, as tests expect it: dealt out one by one."""

from __future__ import annotations

from collections.abc import Sequence


def lane_batches(lengths: Sequence[int], batch: int) -> list[list[tuple[int, int]]]:
    """Returns lane and place of the samples of each step of an epoch."""
    taken, steps = [0] * len(lengths), list[list[tuple[int, int]]]()
    while sum(taken) < sum(lengths):
        dealt: list[list[tuple[int, int]]] = [[] for _ in lengths]
        while sum(map(len, dealt)) < batch and sum(taken) < sum(lengths):
            for lane, length in enumerate(lengths):
                if taken[lane] < length and sum(map(len, dealt)) < batch:
                    dealt[lane].append((lane, taken[lane]))
                    taken[lane] += 1
        steps.append([place for of_lane in dealt for place in of_lane])
    return steps
