"""A period is read as it is written by hand; without one, saving takes a twentieth of the time at most."""

from __future__ import annotations

import pytest

from elastic_launcher.period import Period, read_period, read_seconds


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("30", Period(seconds=30.0)),
        ("30s", Period(seconds=30.0)),
        ("0.5s", Period(seconds=0.5)),
        ("5m", Period(seconds=300.0)),
        ("1.5 h", Period(seconds=5400.0)),
        ("1 step", Period(steps=1)),
        (" 100 steps ", Period(steps=100)),
    ],
)
def test_a_period_is_read(text: str, period: Period) -> None:
    assert read_period(text) == period


@pytest.mark.parametrize("text", ["", "s", "0", "0 steps", "-1s", "nan", "1e3", "5 minutes", "2.5 steps", "٣s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a time or a number of steps above 0"):
        read_period(text)


def test_steps_count_steps_and_seconds_seconds() -> None:
    assert [Period(steps=3).is_due(steps, 1e9, 1e9) for steps in (2, 3)] == [False, True]
    assert [Period(seconds=3).is_due(10**9, seconds, 1e9) for seconds in (2.9, 3.0)] == [False, True]


@pytest.mark.parametrize(("cost", "due"), [(0.0, 30.0), (1.5, 30.0), (3.0, 60.0), (60.0, 1200.0)])
def test_the_default_follows_the_cost(cost: float, due: float) -> None:
    assert not Period().is_due(10**9, due - 0.1, cost)
    assert Period().is_due(0, due, cost)


def test_a_time_is_read_as_a_period_is() -> None:
    assert [read_seconds(text) for text in ("90", "30m", "1.5 h")] == [90.0, 1800.0, 5400.0]


@pytest.mark.parametrize("text", ["", "0s", "100 steps", "later"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a time above 0, for example 90s, 30m or 12h"):
        read_seconds(text)
