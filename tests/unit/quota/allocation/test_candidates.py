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
