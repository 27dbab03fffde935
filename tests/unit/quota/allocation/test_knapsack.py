"""The choice of options is the best one within the GPUs, and to fill, the best one that uses the most of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation import knapsack
from elastic_launcher.quota.allocation.knapsack import Choices, choose

OPTIONS = st.dictionaries(st.integers(0, 6), st.integers(0, 20).map(float), min_size=1, max_size=4)


def possible(jobs: list[dict[int, float]], total: int) -> list[tuple[float, int, tuple[int, ...]]]:
    """Returns value, GPUs and counts of each choice that fits."""
    found = []
    for counts in product(*jobs):
        if sum(counts) <= total:
            found.append((sum(job[gpus] for job, gpus in zip(jobs, counts, strict=True)), sum(counts), counts))
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(OPTIONS, max_size=4), st.integers(0, 16), st.booleans())
def test_nothing_that_fits_is_better(jobs: list[dict[int, float]], total: int, fill: bool) -> None:
    every = possible(jobs, total)
    choices = [Choices(job, 1.0) for job in jobs]
    if not every:
        with pytest.raises(ValueError, match="at least"):
            choose(choices, total, fill=fill)
        return
    counts = choose(choices, total, fill=fill)
    value = sum(job[gpus] for job, gpus in zip(jobs, counts, strict=True))
    used = max(gpus for _, gpus, _ in every) if fill else None
    assert sum(counts) <= total and (used is None or sum(counts) == used)
    assert value == max(value for value, gpus, _ in every if used is None or gpus == used)


def test_of_equal_options_the_smaller_one_wins() -> None:
    assert choose([Choices({1: 1.0, 2: 1.0, 4: 1.0}, 1.0)], 4) == [1]


def test_of_equal_jobs_the_first_ones_get_more() -> None:
    jobs = [Choices({1: 1.0, 2: 1.5, 3: 1.7}, 0.1) for _ in range(7)]
    assert choose(jobs, 11) == [2, 2, 2, 2, 1, 1, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 30))
def test_hulls_are_as_good_where_more_gpus_are_worth_less_and_less(gains: list[list[int]], total: int) -> None:
    jobs = []
    for one in gains:
        values, sum_of_gains = {0: 0.0}, 0.0
        for gpus, gain in enumerate(sorted(one, reverse=True), start=1):
            sum_of_gains += gain
            values[gpus] = sum_of_gains
        jobs.append(Choices(values, 1.0))
    worth = [
        sum(job.values[job.gpus.index(gpus)] for job, gpus in zip(jobs, counts, strict=True))
        for counts in (choose(jobs, total), knapsack._hulls(jobs, total))
    ]
    assert worth[1] == pytest.approx(worth[0])
