"""GPUs go where they are worth most, within floors and sizes, in the same way whatever the order of the jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.division import Candidate, Settings, divide
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds

LINEAR = MeasuredSpeeds.by_size({}, 8)


def candidate(name: str, **fields: object) -> Candidate:
    usual = Candidate(
        name, limit=8, request=1, profiled=8, age=3600.0, changes=0, service=0.0, delay=30.0, work=None, submitted=0.0,
        speeds=LINEAR,
    )  # fmt: skip
    return replace(usual, **fields)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        least = draw(st.integers(1, 3))
        sizes = tuple(sorted(draw(st.sets(st.integers(least, 8), min_size=1, max_size=4))))
        rates = draw(st.dictionaries(st.integers(1, 8), st.floats(0.5, 8.0), max_size=3))
        work = draw(st.one_of(st.none(), st.floats(10.0, 1e6)))
        jobs.append(
            candidate(
                f"job-{number}",
                minimum=sizes[0],
                sizes=sizes,
                limit=sizes[-1],
                profiled=draw(st.integers(1, 8)),
                service=draw(st.floats(0.0, 1e6)),
                changes=draw(st.integers(0, 5)),
                work=work if rates else None,
                speeds=MeasuredSpeeds.by_size(rates, 8),
            )
        )
    return jobs


@settings(max_examples=150, deadline=None)
@given(candidates(), st.integers(0, 24), st.booleans())
def test_a_division_is_legal_stays_and_knows_no_order(jobs: list[Candidate], total: int, fill: bool) -> None:
    found = divide(jobs, total, {}, fill=fill)
    assert sum(found.values()) <= total
    assert all(not found[job.name] or found[job.name] in job.sizes for job in jobs)
    assert divide(jobs[::-1], total, {}, fill=fill) == found
    assert divide(jobs, total, found, fill=fill) == found


def test_divisions_that_each_look_better_from_the_one_before_end_where_they_began() -> None:
    rates: list[dict[int, float]] = [{1: 2.0, 2: 1.0}, {2: 1.0, 3: 1.0}, {}, {}]
    sizes = [(3, 4, 5, 6), (1, 2, 3, 4), (1, 2, 3, 8), (1, 4)]
    speeds = [MeasuredSpeeds.by_size(one, 8) for one in rates]
    jobs = [
        candidate(
            f"job-{n}", minimum=of[0], sizes=of, limit=of[-1], profiled=2 - n % 2, service=1.0 * (not n), speeds=speed
        )
        for n, (of, speed) in enumerate(zip(sizes, speeds, strict=True))
    ]
    found = divide(jobs, 20, {}, fill=True)
    assert divide(jobs, 20, found, fill=True) == found


@settings(max_examples=100, deadline=None)
@given(candidates(), st.integers(0, 24))
def test_nobody_gets_less_than_its_floor(jobs: list[Candidate], more: int) -> None:
    floors = {job.name: job.sizes[0] for job in jobs}
    found = divide(jobs, sum(floors.values()) + more, {}, floors=floors)
    assert all(found[name] >= floor for name, floor in floors.items())


def test_floors_that_need_more_than_there_is_are_refused() -> None:
    with pytest.raises(ValueError, match="need at least 4 GPUs, and there are 3"):
        divide([candidate("a"), candidate("b")], 3, {}, floors={"a": 2, "b": 2})


def test_the_job_that_scales_gets_the_gpus() -> None:
    flat = candidate("flat", work=1e5, speeds=MeasuredSpeeds.by_size({1: 1.0, 4: 1.05}, 8))
    scales = candidate("scales", work=1e5, speeds=MeasuredSpeeds.by_size({1: 1.0, 4: 3.9}, 8))
    found = divide([flat, scales], 8, {}, floors={"flat": 1, "scales": 1})
    assert (found["flat"], found["scales"]) == (1, 7)


def test_a_job_that_is_nearly_done_is_not_moved_by_a_restart() -> None:
    job = candidate("job", work=20.0, speeds=MeasuredSpeeds.by_size({1: 1.0, 2: 1.9}, 8))
    assert divide([job], 8, {"job": 2}, settings=Settings(in_process=False)) == {"job": 2}
    assert divide([replace(job, work=1e6)], 8, {"job": 2}, settings=Settings(in_process=False))["job"] > 2


@pytest.mark.parametrize("rates", [{1: 2.0, 2: 3.8, 4: 7.0}, {2: 3.0}, {4: 6.0, 8: 7.0}])
def test_measured_speeds_are_kept_and_more_gpus_are_never_slower(rates: dict[int, float]) -> None:
    speeds = MeasuredSpeeds.by_size(rates, 8)
    curve = speeds.curve(np.arange(1, 33))
    assert np.all(np.diff(curve) >= -1e-12)
    for gpus, rate in rates.items():
        assert speeds.steps_per_second(1, gpus) == pytest.approx(rate)
    assert curve[-1] <= 32 * (1 + 1e-9)
