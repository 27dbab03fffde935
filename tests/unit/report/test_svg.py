"""Charts: round axes, thin curves, and labels that never cover each other."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.report.svg import (
    CHARACTER,
    MAX_POINTS,
    Chart,
    Label,
    log_ticks,
    pieces,
    place,
    thin,
    ticks,
    time_ticks,
    whole_ticks,
)

CHART = Chart("c", "Title", "unit", "text", seconds=100.0, low=0.0, high=10.0, top=8, inner=100)


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-6, 1e6))
def test_an_axis_has_a_few_round_numbers_within_it(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 6
    assert all(low - span * 1e-3 <= value <= low + span * 1.001 for value in found)


@pytest.mark.parametrize(
    ("high", "values"), [(1.2, [0, 1]), (3.4, [0, 1, 2, 3]), (8.8, [0, 2, 4, 6, 8]), (69.3, [0, 20, 40, 60])]
)
def test_an_axis_of_ranks_has_whole_numbers(high: float, values: list[float]) -> None:
    assert whole_ticks(high) == values


@given(st.floats(0.1, 1e6))
def test_an_axis_of_ranks_is_never_crowded(high: float) -> None:
    found = whole_ticks(high)
    assert 1 <= len(found) <= 7
    assert found == [int(value) for value in found]


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.0002, 2.5, [0.001, 0.01, 0.1, 1]),
        (0.3, 12, [0.5, 1, 2, 5, 10]),
        (1e-12, 1, [1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1]),
    ],
)
def test_a_logarithmic_axis_has_powers_of_ten(low: float, high: float, values: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(values)


@pytest.mark.parametrize(
    ("seconds", "last"),
    [(0.4, "0.4 s"), (43, "40 s"), (86, "75 s"), (400, "6 min"), (3 * 3600, "3:00 h"), (7 * 86400, "7 d"), (9e8, None)],
)
def test_an_axis_of_time_has_round_moments(seconds: float, last: str | None) -> None:
    found = time_ticks(seconds)
    assert 2 <= len(found) <= 9
    assert found[0][0] == 0
    assert last is None or found[-1][1] == last


def test_a_short_curve_stays_as_it_is() -> None:
    points = [(float(n), math.sin(n)) for n in range(MAX_POINTS)]
    assert thin(points) == points


@given(seed=st.integers(0, 1000), length=st.integers(MAX_POINTS + 1, MAX_POINTS * 3))
def test_a_long_curve_keeps_its_ends_and_its_extremes(seed: int, length: int) -> None:
    noise = random.Random(seed)
    points = [(n * noise.uniform(0.99, 1.0), noise.choice([1.0, noise.gauss(0, 9)])) for n in range(length)]
    points.sort()
    values = [value for _, value in points]
    kept = thin(points)
    assert len(kept) <= MAX_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)
    assert kept == sorted(kept, key=lambda point: point[0])


def test_a_curve_is_cut_where_it_is_not_a_number() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, math.nan), (4.0, 3.0), (5.0, math.nan)]
    assert pieces(points) == [[(0.0, 1.0), (1.0, 2.0)], [(4.0, 3.0)]]
    assert CHART.curve(points, "k").count("M") == 2
    assert CHART.curve([(0.0, math.nan)], "k") == ""


LABELS = st.lists(st.tuples(st.floats(0, 100), st.text("ab", min_size=1, max_size=16)), max_size=40)


@given(labels=LABELS, width=st.floats(150, 1200), rows=st.integers(1, 3))
def test_labels_never_cover_each_other_and_stay_within(
    labels: list[tuple[float, str]], width: float, rows: int
) -> None:
    ordered = [Label(at, (text, text[:1])) for at, text in sorted(labels)]
    placed = place(ordered, 100.0, width, rows)
    taken: dict[int, list[tuple[float, float]]] = {}
    for label, one in zip(ordered, placed, strict=True):
        if one is None:
            continue
        x, needed = width * label.second / 100, len(one.text) * CHARACTER
        left = x - needed if one.before else x
        assert left >= -1e-6
        assert left + needed <= width + 1e-6
        assert all(left >= end or left + needed <= start for start, end in taken.get(one.row, []))
        taken.setdefault(one.row, []).append((left, left + needed))


def test_a_label_without_room_is_shortened_and_then_left_out() -> None:
    labels = [Label(at, ("1 start", "1")) for at in (0.0, 60.0, 62.0, 63.0)]
    placed = place(labels, 100.0, 100.0, 1)
    assert [None if one is None else one.text for one in placed] == ["1 start", "1", None, None]


def test_values_and_moments_beyond_the_frame_lie_on_it() -> None:
    assert (CHART.x(-5), CHART.x(50), CHART.x(500)) == (0.0, 50.0, 100.0)
    assert (CHART.y(-3), CHART.y(5), CHART.y(99)) == (108.0, 58.0, 8.0)


def test_stairs_hold_their_values_and_break_where_there_is_none() -> None:
    path = CHART.stairs([(0.0, 5.0), (20.0, math.nan), (40.0, 10.0)], "k")
    assert path == '<path class="k" d="M0.00,58.0 200.00,58.0M400.00,8.0 1000.00,8.0"/>'
    assert CHART.stairs([], "k") == CHART.area([], "k") == ""


def test_a_logarithmic_chart_has_equal_distances_for_equal_factors() -> None:
    chart = Chart("c", "t", "", "", 1.0, low=0.01, high=100.0, inner=100, logarithmic=True)
    assert [chart.y(value) - chart.y(value * 10) for value in (0.01, 0.1, 1, 10)] == [25.0] * 4
    assert chart.y(0.0) == chart.floor
