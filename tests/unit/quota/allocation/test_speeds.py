"""Speeds pass through what was measured, are nearly linear where nothing is known, and know what machines cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds

RATES = st.dictionaries(st.tuples(st.integers(1, 4), st.integers(4, 16)), st.floats(0.01, 100.0), max_size=6)


@settings(max_examples=100, deadline=None)
@given(RATES)
def test_speeds_pass_through_what_was_measured(rates: dict[tuple[int, int], float]) -> None:
    speeds = MeasuredSpeeds(rates, 4)
    for (machines, gpus), rate in rates.items():
        assert speeds.steps_per_second(machines, gpus) == rate
    curve = speeds.curve(np.arange(1, 65))
    assert np.isfinite(curve).all()
    assert (np.diff(curve) >= 0).all()
    assert (curve > 0).all()


def test_nothing_measured_is_linear() -> None:
    speeds = MeasuredSpeeds({}, 4)
    assert speeds.curve(np.array([1, 3, 64])).tolist() == [1.0, 3.0, 64.0]
    assert speeds.at(7, 12) == 12.0


def test_one_size_measured_is_nearly_linear() -> None:
    assert MeasuredSpeeds({(1, 1): 5.0}, 4).curve(np.array([2, 4])) == pytest.approx([2.0, 3.8], rel=0.05)
    assert MeasuredSpeeds({(1, 4): 20.0}, 4).at(1, 1) == 1.0
    assert MeasuredSpeeds({(1, 4): 20.0}, 4).at(1, 4) == pytest.approx(3.8, rel=0.05)


def test_what_flattens_stays_flat_beyond_what_was_measured() -> None:
    flattens = MeasuredSpeeds({(1, 1): 1.0, (1, 2): 1.6, (1, 4): 2.2}, 4)
    assert flattens.at(4, 16) < 3.5
    assert MeasuredSpeeds({(1, 1): 1.0, (1, 2): 2.0, (1, 4): 4.0}, 4).at(4, 16) > 10


def test_several_machines_cost_what_they_cost_where_it_was_measured() -> None:
    speeds = MeasuredSpeeds({(1, 1): 1.0, (1, 4): 3.6, (2, 8): 2.0}, 4)
    assert speeds.at(2, 4) < speeds.at(1, 4)
    assert speeds.curve(np.array([4, 8])).tolist() == [3.6, 3.6]  # more GPUs can be left unused
    assert speeds.at(2, 8) == 2.0


def test_sizes_alone_were_measured_on_the_fewest_machines() -> None:
    speeds = MeasuredSpeeds.by_size({2: 3.0, 8: 7.0}, 4)
    assert (speeds.steps_per_second(1, 2), speeds.steps_per_second(2, 8)) == (3.0, 7.0)
