"""What the allocation makes of a report: speeds are believed near what was measured, and hardly rise beyond."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from elastic_launcher.quota.allocation.candidates import GROWTH, candidate
from tests.support.quota_jobs import job


@pytest.mark.parametrize("speeds", [{}, {1: 2.0}, {1: 2.0, 2: 3.9}])
def test_beyond_what_is_believed_each_gpu_adds_less_than_the_one_before(speeds: Mapping[int, float]) -> None:
    counts = np.arange(max(1, GROWTH * max(speeds, default=0)), 65)
    found = candidate(job("bert", most=64, speeds=speeds), tuple(range(1, 65)), 0.0).speeds
    curve = found.curve(counts)
    gains = np.diff(curve)
    assert (gains > 0).all() and (np.diff(gains) < 0).all()
    assert curve[-1] < 1.01 * curve[0], "no job takes GPUs from others by a speed that nobody measured"
    assert [found.at(1, int(gpus)) for gpus in counts[:3]] == pytest.approx(curve[:3].tolist())


def test_a_goodput_that_is_reported_counts_instead_of_steps_a_second() -> None:
    reported = job("bert", most=8, speeds={1: 1.0, 2: 1.1}, goodput={1: 10.0, 2: 19.0, 4: 36.0, 8: 60.0})
    curve = candidate(reported, tuple(range(1, 9)), 0.0).speeds.curve(np.array([1, 2, 4, 8]))
    assert curve == pytest.approx([1.0, 1.9, 3.6, 6.0])


def test_beyond_the_largest_goodput_each_gpu_adds_less_than_the_one_before() -> None:
    goodput = {1: 10.0, 2: 19.0, 4: 36.0, 8: 36.0, 16: 36.0}  # a model that promises nothing beyond four
    found = candidate(job("bert", most=64, speeds={2: 3.0}, goodput=goodput), tuple(range(1, 65)), 0.0).speeds
    gains = np.diff(found.curve(np.arange(4, 65)))
    assert (gains > 0).all() and (np.diff(gains) < 0).all()


@pytest.mark.parametrize(("held", "work"), [(2, 100 / 3.0 * 1.9), (4, 100 / 5.0 * 3.6), (0, 100 / 5.0 * 3.6)])
def test_the_work_left_is_that_of_the_batch_that_it_has_by_the_goodput_on_one_gpu(held: int, work: float) -> None:
    fields = {"speeds": {2: 3.0, 4: 5.0}, "goodput": {1: 10.0, 2: 19.0, 4: 36.0}, "steps_left": 100}
    found = candidate(job("bert", held=held, most=8, **fields), tuple(range(1, 9)), 0.0)
    assert found.work == pytest.approx(work)
