"""Numbers for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.report import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0314, "31 ms"),
        (0.9999, "1.0 s"),
        (8.44, "8.4 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7505, "2 h 05 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_a_time_span(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.44, "8.4 s"), (59.94, "59.9 s"), (59.97, "1:00 min"), (75.9, "1:15 min"), (7507, "2:05:07 h"), (-1, "0.0 s")],
)
def test_a_moment(seconds: float, text: str) -> None:
    assert words.moment(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (3, "3"),
        (12345678, "12,345,678"),
        (0.0, "0"),
        (0.25, "0.25"),
        (2.30258509, "2.303"),
        (1234.5, "1,234"),
        (2.6077e-4, "2.61e-4"),
        (-1e-9, "-1e-9"),
        (3e20, "3.000e+20"),
        (-3 * 10**400, "-3.000e+400"),
        (math.nan, "nan"),
        ("inf", "inf"),
    ],
)
def test_a_number(value: object, text: str) -> None:
    assert words.number(value) == text


@given(st.floats())
def test_any_number_is_short(value: float) -> None:
    assert 0 < len(words.number(value)) <= 21


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "–"), ([4], "4"), ([1, 2], "1, 2"), ([1, 2, 3, 7, 9, 10], "1-3, 7, 9, 10"), ([5, 6, 7, 1, 2, 3], "5-7, 1-3")],
)
def test_a_list_of_numbers_keeps_its_order(numbers: list[int], text: str) -> None:
    assert words.listing(numbers) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (9_999_999, "9,999,999"), (178_315_264, "178.3 M"), (2_500_000_000, "2.5 G")]
)
def test_a_large_count(count: int, text: str) -> None:
    assert words.compact(count) == text
