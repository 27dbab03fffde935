"""The table of step times: medians by configuration, bounded, and not impressed by absurd times."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.observations import (
    LAST_TIMES,
    MOST_CONFIGURATIONS,
    Configuration,
    Observation,
    Observations,
)

ABSURD = [0.0, -1.0, math.nan, math.inf, -math.inf]


def table(*seconds: float, **more: Any) -> Observations:
    return Observations(Observation(1, 2, 8, 1, one, **more) for one in seconds)


def only(observations: Observations) -> Observation:
    (found,) = observations
    return found


def test_steps_of_one_configuration_are_one_observation() -> None:
    found = only(table(1.0, 2.0, 4.0))
    assert found == Observation(1, 2, 8, 1, 2.0, None, 3)
    assert found.configuration == Configuration(1, 2, 8, 1)


def test_an_average_counts_as_many_times_as_it_has_steps() -> None:
    observations = Observations([Observation(1, 1, 8, 1, 1.0, count=5), Observation(1, 1, 8, 1, 3.0, count=4)])
    assert (only(observations).seconds, only(observations).count) == (1.0, 9)


def test_of_two_middle_times_the_mean_is_taken() -> None:
    assert only(table(1.0, 2.0)).seconds == 1.5


@pytest.mark.parametrize("absurd", ABSURD)
def test_a_time_that_no_step_can_have_taken_changes_nothing(absurd: float) -> None:
    observations = table(1.0, absurd)
    observations.add(Observation(4, 8, 8, 1, absurd))
    assert list(observations) == [Observation(1, 2, 8, 1, 1.0)]
    assert observations.most_ranks == 2


@pytest.mark.parametrize("absurd", [*ABSURD, 100.0])
def test_a_micro_batch_time_that_does_not_fit_its_step_is_unknown(absurd: float) -> None:
    assert only(table(1.0, micro_batch_seconds=absurd)).micro_batch_seconds is None


def test_micro_batches_have_a_median_of_their_own() -> None:
    observations = Observations(Observation(1, 1, 8, 3, 1.0, one) for one in (0.3, None, 0.2, 0.4))
    assert only(observations).micro_batch_seconds == 0.3


@pytest.mark.parametrize("outlier", [0.01, 100.0])
@pytest.mark.parametrize("place", range(5))
def test_one_outlier_does_not_count_wherever_it_comes(outlier: float, place: int) -> None:
    times = [0.98, 0.99, 1.01, 1.02]
    times.insert(place, outlier)
    assert 0.98 <= only(table(*times)).seconds <= 1.02


def test_a_machine_that_becomes_slower_is_followed() -> None:
    assert only(table(*[1.0] * 1000, *[2.0] * LAST_TIMES)).seconds == 2.0


def test_the_table_is_bounded_and_forgets_what_was_measured_longest_ago() -> None:
    observations = Observations(Observation(1, 2, size, 1, 1.0) for size in range(1, MOST_CONFIGURATIONS + 1))
    observations.add(Observation(1, 2, 1, 1, 1.0))
    observations.add(Observation(1, 2, MOST_CONFIGURATIONS + 1, 1, 1.0))
    assert len(observations) == MOST_CONFIGURATIONS
    assert {one.micro_batch for one in observations} == {1, *range(3, MOST_CONFIGURATIONS + 2)}


def test_a_full_table_still_knows_the_most_ranks() -> None:
    observations = Observations([Observation(2, 64, 1, 1, 1.0)])
    for size in range(1, 2 * MOST_CONFIGURATIONS):
        observations.add(Observation(1, 2, size, 1, 1.0))
    assert observations.most_ranks == 64
    assert len(observations) == MOST_CONFIGURATIONS


times = st.floats(1e-3, 1e3)
observed = st.builds(
    Observation, st.just(1), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), times, st.none() | times
)


@given(st.lists(observed, max_size=40))
def test_a_table_made_from_what_a_table_yields_yields_the_same(observations: list[Observation]) -> None:
    found = list(Observations(observations))
    assert list(Observations(found)) == found


@given(st.lists(observed, min_size=1, max_size=40))
def test_what_is_yielded_is_within_what_was_measured(observations: list[Observation]) -> None:
    for one in Observations(observations):
        alike = [other.seconds for other in observations if other.configuration == one.configuration]
        assert min(alike) <= one.seconds <= max(alike)
        assert one.count == len(alike)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((2, 1, 8, 1, 1.0), "machines is 2; it must not be above ranks, 1"),
        ((1, 0, 8, 1, 1.0), "ranks is 0"),
        ((1, 1, True, 1, 1.0), "micro_batch is True"),
        ((1, 1, 8, 0, 1.0), "accumulation is 0"),
        ((1, 1, 8, 1, 1.0, None, 0), "count is 0"),
    ],
)
def test_counts_that_no_step_has_are_refused(numbers: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Observation(*numbers)
