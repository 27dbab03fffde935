"""Courses: Amdahl's law, and steps and speeds of applications between what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_launcher.quota.simulation.courses import Amdahl, Application, FixedBatch


def rows(*values: tuple[float, ...]) -> np.ndarray:
    return np.array(values, dtype=float)


def application() -> Application:
    """Returns one whose step takes 1 s and 0.1 s for each sample, and 0.5 s more across machines."""
    times = {(1,): rows((2, 1.2, 0.0), (8, 1.8, 0.0)), (2,): rows((2, 1.2, 0.1), (8, 1.8, 0.1))}
    larger = {
        (machines, gpus): rows((2, 1.7 + gpus / 100, 0.5), (8, 2.3 + gpus / 100, 0.5))
        for machines in (1, 2, 4)
        for gpus in (machines, 4 * machines)
    }
    epochs = {4: rows((10, 1, 8), (20, 1, 8)), 8: rows((12, 1, 8), (19, 1, 8))}
    return Application(times, larger, epochs, most=8)


def test_a_part_that_is_not_divided_bounds_the_speed() -> None:
    assert Amdahl(100.0).rate((4, 4)) == 8.0
    assert Amdahl(100.0, 0.5).rate((1, 1)) == pytest.approx(4 / 3)
    assert Amdahl(100.0, 1.0).rate((64,)) == 1.0


@pytest.mark.parametrize(
    ("spread", "batch", "seconds"),
    [
        ((1,), 4, 1.4),
        ((1,), 8, 2.8),  # two micro-batches of four
        ((2,), 8, 1.4),
        ((2,), 16, 1.8),
        ((2,), 32, 1.8 + 1.7),  # the first of two micro-batches without synchronization
        ((1, 1), 8, 1.9 + 0.02),
        ((1, 1, 1), 12, 1.9 + 0.03),  # between two and four machines
        ((3, 3, 3), 36, 1.9 + 0.09),
        ((4,) * 6, 96, 1.9 + 0.16),  # more machines than were measured
    ],
)
def test_a_step_takes_what_was_measured_or_what_lies_between(
    spread: tuple[int, ...], batch: int, seconds: float
) -> None:
    assert application().step_seconds(spread, batch) == pytest.approx(seconds)
    assert FixedBatch(application(), batch).rate(spread) == pytest.approx(1 / seconds)


def test_a_larger_batch_takes_fewer_steps_by_its_gain() -> None:
    # epochs of 10 and 9 steps at the smallest batch; the gain at twice that is (8 + 1) / (8 / 2 + 1)
    assert application().steps(4) == pytest.approx(19.0)
    assert application().steps(8) == pytest.approx(19.0 / 1.8)
    assert FixedBatch(application(), 6).steps == pytest.approx(19.0 * (8 / 1.5 + 1) / 9)


def test_the_bounds_of_an_application_are_what_was_measured() -> None:
    assert (application().least, application().gpus) == (2, 16)
