"""The fit finds the parts of a step from noisy times, is optimistic where nothing was measured, and tells its error."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.fit import Fit, fit
from elastic_launcher.adaptive.observations import Configuration, Observation, Observations
from elastic_launcher.adaptive.throughput import ThroughputModel

SIZES = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16)]
CONFIGURATIONS = [
    Configuration(machines, ranks, micro_batch, accumulation)
    for (machines, ranks), micro_batch, accumulation in itertools.product(SIZES, [8, 16, 32, 64], [1, 2, 4])
]
MODELS = {
    "no overlap": ThroughputModel(0.02, 0.004, 0.15, 0.01, 0.05, 0.004, overlap=1.0),
    "some overlap": ThroughputModel(0.05, 0.002, 0.2, 0.01, 0.08, 0.01, overlap=2.5),
    "full overlap": ThroughputModel(0.01, 0.003, 0.3, 0.02, 0.1, 0.01, overlap=10.0),
    "seconds, not milliseconds": ThroughputModel(5.0, 0.5, 20.0, 1.0, 5.0, 0.5, overlap=1.5),
    "communication is fast": ThroughputModel(0.1, 0.01, 0.01, 0.001, 0.005, 0.0, overlap=1.0),
    "computing is fast": ThroughputModel(0.001, 0.0001, 0.5, 0.05, 0.1, 0.01, overlap=1.0),
}
FIRST = MODELS["no overlap"]


def measured(
    model: ThroughputModel,
    configurations: Iterable[Configuration],
    *,
    noise: float = 0.0,
    steps: int = 1,
    micro_batches: bool = True,
    seed: int = 0,
) -> list[Observation]:
    """Returns what a job measures whose times have a relative error."""
    random = np.random.default_rng(seed)
    return [
        Observation(
            *one,
            model.step_seconds(*one) * math.exp(random.normal(0, noise)),
            model.micro_batch_seconds(one.micro_batch) * math.exp(random.normal(0, noise))
            if micro_batches and one.accumulation > 1
            else None,
        )
        for one in configurations
        for _ in range(steps)
    ]


def worst_error(found: Fit, model: ThroughputModel, configurations: Iterable[Configuration]) -> float:
    """Returns the largest relative error of a step's time."""
    return max(abs(found.model.step_seconds(*one) / model.step_seconds(*one) - 1) for one in configurations)


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_exact_times_give_the_model_that_they_come_from(model: ThroughputModel) -> None:
    found = fit(Observations(measured(model, CONFIGURATIONS)))
    assert worst_error(found, model, CONFIGURATIONS) < 0.03
    assert found.error < 0.005


@pytest.mark.parametrize("micro_batches", [True, False], ids=["micro-batches timed", "steps timed alone"])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_noisy_times_give_the_model_within_a_fraction_of_their_noise(
    model: ThroughputModel, micro_batches: bool
) -> None:
    for seed in range(5):
        times = measured(model, CONFIGURATIONS, noise=0.1, steps=10, micro_batches=micro_batches, seed=seed)
        found = fit(Observations(times))
        errors = [abs(found.model.step_seconds(*one) / model.step_seconds(*one) - 1) for one in CONFIGURATIONS]
        assert max(errors) < 0.08 and np.mean(errors) < 0.02
        assert found.error < 0.05


def test_noisy_times_give_the_parts_of_a_step() -> None:
    for seed in range(5):
        found = fit(Observations(measured(FIRST, CONFIGURATIONS, noise=0.05, steps=15, seed=seed))).model
        assert found.compute == pytest.approx(FIRST.compute, rel=0.1)
        assert found.compute_per_sample == pytest.approx(FIRST.compute_per_sample, rel=0.03)
        assert found.within == pytest.approx(FIRST.within, rel=0.25)
        assert found.across == pytest.approx(FIRST.across, rel=0.1)
        assert found.across_per_rank == pytest.approx(FIRST.across_per_rank, rel=0.1)
        assert found.overlap == pytest.approx(FIRST.overlap, abs=0.15)


def test_sizes_between_and_beyond_the_measured_ones_are_predicted() -> None:
    seen = [one for one in CONFIGURATIONS if one.ranks <= 8 and one.micro_batch in (8, 32)]
    found = fit(Observations(measured(FIRST, seen, noise=0.03, steps=15)))
    assert worst_error(found, FIRST, CONFIGURATIONS) < 0.08


def test_the_error_grows_with_what_the_model_does_not_explain() -> None:
    exact, little, much = (
        fit(Observations(measured(FIRST, CONFIGURATIONS, noise=noise))).error for noise in (0.0, 0.05, 0.2)
    )
    assert exact < 0.005 < little < 0.06 < much < 0.25


def test_one_rank_alone_leaves_synchronization_free() -> None:
    found = fit(Observations(measured(FIRST, [one for one in CONFIGURATIONS if one.ranks == 1])))
    model = found.model
    assert (model.within, model.within_per_rank, model.across, model.across_per_rank) == (0.0, 0.0, 0.0, 0.0)
    assert model.overlap == 1.0
    assert found.assumptions == ("only one rank was timed: synchronization costs nothing",)


def test_one_machine_alone_makes_several_a_little_slower() -> None:
    model = fit(Observations(measured(FIRST, [one for one in CONFIGURATIONS if one.machines == 1]))).model
    assert model.within == pytest.approx(FIRST.within, rel=0.1)
    assert (model.across, model.across_per_rank) == pytest.approx((1.1 * model.within, 1.1 * model.within_per_rank))


def test_several_machines_alone_leave_synchronization_within_one_free() -> None:
    found = fit(Observations(measured(FIRST, [one for one in CONFIGURATIONS if one.machines != 1 or one.ranks == 1])))
    assert (found.model.within, found.model.within_per_rank) == (0.0, 0.0)
    assert found.assumptions == (
        "several ranks on one machine were not timed: synchronization within it costs nothing",
    )


def test_two_ranks_at_most_leave_further_ones_free() -> None:
    found = fit(
        Observations(measured(FIRST, [Configuration(1, ranks, size, 1) for ranks in (1, 2) for size in (8, 64)]))
    )
    assert found.model.within == pytest.approx(FIRST.within, rel=0.1)
    assert found.model.within_per_rank == 0.0
    assert "no more than 2 ranks on one machine were timed: further ranks cost nothing" in found.assumptions


def test_one_size_of_micro_batches_is_split_in_half() -> None:
    found = fit(Observations([Observation(1, 1, 32, 1, 0.4)]))
    assert found.model.compute == pytest.approx(0.2, rel=0.01)
    assert found.model.compute_per_sample * 32 == pytest.approx(0.2, rel=0.01)
    assert found.assumptions[0] == "only micro-batches of 32 were timed: half of their time is for any size"


def test_one_configuration_alone_is_all_computing() -> None:
    model = fit(Observations([Observation(1, 4, 32, 1, 0.4)])).model
    assert model.micro_batch_seconds(32) == pytest.approx(0.4, rel=0.02)
    assert model.step_seconds(1, 1, 32, 1) == pytest.approx(0.4, rel=0.02)


def test_ranks_are_trusted_up_to_twice_the_most_that_were_tried() -> None:
    assert fit(Observations([Observation(1, 1, 32, 1, 0.4), Observation(2, 6, 32, 1, 0.5)])).most_ranks == 12


def test_what_was_measured_can_be_looked_up() -> None:
    found = fit(Observations([Observation(1, 1, 32, 1, 0.4), Observation(1, 1, 32, 1, 0.6)]))
    assert found.measured == {(1, 1, 32, 1): 0.5}


@pytest.mark.parametrize("outlier", [0.01, 100.0])
def test_an_outlier_of_a_hundred_times_does_not_move_the_fit(outlier: float) -> None:
    times = measured(FIRST, CONFIGURATIONS, noise=0.05, steps=10)
    wrong = Observation(*times[7].configuration, outlier * times[7].seconds)
    assert worst_error(fit(Observations([*times, wrong])), FIRST, CONFIGURATIONS) < 0.05
    alone = Observation(2, 6, 48, 1, outlier * FIRST.step_seconds(2, 6, 48, 1))
    assert worst_error(fit(Observations([*times, alone])), FIRST, CONFIGURATIONS) < 0.05


def test_absurd_times_among_good_ones_change_nothing() -> None:
    times = measured(FIRST, CONFIGURATIONS)
    absurd = [Observation(1, 2, 8, 1, seconds) for seconds in (0.0, math.nan, -1.0, math.inf)]
    assert fit(Observations([*absurd, *times])) == fit(Observations(times))


def test_without_a_time_there_is_no_model() -> None:
    with pytest.raises(ValueError, match="no step has been timed yet"):
        fit(Observations([Observation(1, 1, 8, 1, math.nan)]))


times = st.floats(1e-300, 1e300)
anything = st.builds(
    lambda machines, ranks, *rest: Observation(min(machines, ranks), ranks, *rest),
    st.integers(1, 100),
    st.integers(1, 1000),
    st.integers(1, 10**6),
    st.integers(1, 100),
    times,
    st.none() | times,
    st.integers(1, 10**6),
)


@given(st.lists(anything, min_size=1, max_size=20))
def test_whatever_was_measured_there_is_a_finite_model(observations: list[Observation]) -> None:
    found = fit(Observations(observations))
    assert math.isfinite(found.error)
    for one in observations:
        assert 0 < found.model.step_seconds(*one.configuration) < math.inf


@given(st.permutations(CONFIGURATIONS[:12]), st.floats(1e-3, 1e3))
def test_neither_the_order_nor_the_unit_of_times_matters(order: list[Configuration], unit: float) -> None:
    model = MODELS["some overlap"]
    scaled = [Observation(*one, unit * model.step_seconds(*one)) for one in order]
    plain = [Observation(*one, model.step_seconds(*one)) for one in CONFIGURATIONS[:12]]
    one, other = fit(Observations(scaled)), fit(Observations(plain))
    for configuration in CONFIGURATIONS[:12]:
        expected = unit * other.model.step_seconds(*configuration)
        assert one.model.step_seconds(*configuration) == pytest.approx(expected, rel=1e-3)


def test_importing_the_models_does_not_import_scipy() -> None:
    names = ["bounds", "decision", "fit", "goodput", "learning_rate", "observations", "progress", "throughput"]
    lines = [*(f"import elastic_launcher.adaptive.{name}" for name in names), "import sys"]
    lines.append("assert not {'scipy', 'torch'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_without_scipy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"needs scipy: pip install 'elastic-launcher\[adaptive\]'"):
        fit(Observations([Observation(1, 1, 32, 1, 0.4)]))
