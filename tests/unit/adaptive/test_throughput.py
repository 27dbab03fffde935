"""The throughput model: the seconds of a step from its parts, as in the paper that it comes from."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.throughput import ThroughputModel

MODEL = ThroughputModel(0.1, 0.01, across=0.3, across_per_rank=0.02, within=0.05, within_per_rank=0.005)
parts = st.floats(0.0, 10.0)
models = st.builds(
    ThroughputModel, st.floats(1e-6, 10.0), parts, parts, parts, parts, parts, overlap=st.floats(1.0, 10.0)
)
counts = st.integers(1, 100)


@pytest.mark.parametrize(
    ("machines", "ranks", "micro_batch", "accumulation", "seconds"),
    [
        (1, 1, 10, 1, 0.2),
        (1, 1, 10, 3, 0.6),
        (1, 2, 10, 1, 0.2 + 0.05),
        (1, 4, 10, 1, 0.2 + 0.05 + 2 * 0.005),
        (2, 2, 10, 1, 0.2 + 0.3),
        (2, 8, 10, 4, 0.8 + 0.3 + 6 * 0.02),
    ],
)
def test_without_overlap_the_parts_add_up(
    machines: int, ranks: int, micro_batch: int, accumulation: int, seconds: float
) -> None:
    assert MODEL.step_seconds(machines, ranks, micro_batch, accumulation) == pytest.approx(seconds)


def test_overlap_is_the_norm_of_the_last_micro_batch_and_the_synchronization() -> None:
    model = ThroughputModel(3.0, 0.0, within=4.0, overlap=2.0)
    assert model.step_seconds(1, 2, 1, 1) == pytest.approx(5.0)
    assert model.step_seconds(1, 2, 1, 3) == pytest.approx(3.0 + 3.0 + 5.0)


@given(models, counts, counts, counts, counts)
def test_a_step_takes_between_its_longest_part_and_all_its_parts(
    model: ThroughputModel, machines: int, ranks: int, micro_batch: int, accumulation: int
) -> None:
    machines = min(machines, ranks)
    seconds = model.step_seconds(machines, ranks, micro_batch, accumulation)
    compute = accumulation * model.micro_batch_seconds(micro_batch)
    synchronization = model.synchronization_seconds(machines, ranks)
    assert max(compute, synchronization) * (1 - 1e-9) <= seconds <= (compute + synchronization) * (1 + 1e-9)


@given(models, counts, counts, counts, counts)
def test_a_step_with_more_of_anything_is_never_shorter(
    model: ThroughputModel, machines: int, ranks: int, micro_batch: int, accumulation: int
) -> None:
    machines = min(machines, ranks)
    seconds = model.step_seconds(machines, ranks, micro_batch, accumulation) * (1 - 1e-9)
    assert model.step_seconds(machines, ranks, micro_batch + 1, accumulation) >= seconds
    assert model.step_seconds(machines, ranks, micro_batch, accumulation + 1) >= seconds
    if ranks > 1:
        assert model.step_seconds(machines, ranks + 1, micro_batch, accumulation) >= seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"compute": -0.1}, "compute is -0.1"),
        ({"within": math.nan}, "within is nan"),
        ({"across_per_rank": math.inf}, "across_per_rank is inf"),
        ({"compute": 0.0, "compute_per_sample": 0.0}, "must take some time"),
        ({"overlap": 0.5}, "overlap is 0.5"),
        ({"overlap": 11.0}, "from 1 to 10"),
    ],
)
def test_parameters_that_no_job_has_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThroughputModel(**({"compute": 0.1, "compute_per_sample": 0.01} | arguments))


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ((2, 1, 8, 1), "machines is 2; it must not be above ranks, 1"),
        ((1, 0, 8, 1), "ranks is 0"),
        ((1, 1, 0, 1), "micro_batch is 0"),
        ((1, 1, 8, 0), "accumulation is 0"),
        ((1, 2.5, 8, 1), "ranks is 2.5"),
    ],
)
def test_configurations_that_no_step_has_are_refused(configuration: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MODEL.step_seconds(*configuration)
