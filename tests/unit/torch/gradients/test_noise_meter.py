"""What the reduction measures agrees with quadratic models whose noise is known, at any world size and accumulation."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.adaptive.noise import NoiseAverages, memory
from elastic_launcher.torch.collectives.consensus import Signals
from elastic_launcher.torch.gradients import noise_meter
from elastic_launcher.torch.gradients.noise_meter import NoiseMeter
from elastic_launcher.torch.gradients.square_norms import FEWEST_STEPS
from elastic_launcher.torch.job import Job
from tests.support.quadratics import (
    BATCH,
    DATA,
    EVERYTHING,
    GRADIENT,
    NUMEL,
    SAMPLES,
    VARIANCES,
    Quadratic,
    assert_known,
    assert_mean,
    elements,
    estimates,
    still,
)
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job


@pytest.fixture(autouse=True)
def _each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "EVERY", 1)


Found = list[NoiseAverages]


def train(
    group: ThreadGroup,
    max_batch: int,
    epochs: int = 5,
    *,
    make: Callable[[nn.Module], Any] = still,
    model: nn.Module | None = None,
    backward: Callable[[Job, torch.Tensor], None] = Job.backward,
    after: Callable[[Job], None] = lambda job: None,
) -> Found:
    """Returns the averages after each step of a training, of which one of no optimizer step is left out."""
    job = thread_job(group, BATCH, max_batch)
    model = Quadratic() if model is None else model
    optimizer = make(model)
    job.prepare(model, optimizer)
    meter = job._session.measure_noise()
    found = [meter.averages]
    for _ in job.epochs(epochs):
        for (x,) in job.dataloader(TensorDataset(DATA.to(next(model.parameters()).dtype)), shuffle=True, seed=5):
            backward(job, model(x))
            optimizer.step()
            if job.sync_gradients:
                found.append(meter.averages)
                after(job)
    return found


@pytest.mark.parametrize(
    ("world_size", "max_batch"),
    [
        *[(1, 24), (1, 12), (1, 6), (2, 24), (2, 6), (3, 16)],
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in [(3, 2), (4, 5), (5, 10), (5, 4)]),
    ],
)
def test_estimates_agree_with_the_closed_form_at_any_world_size_and_accumulation(
    world_size: int, max_batch: int
) -> None:
    ranks = run_ranks(world_size, lambda group: train(group, max_batch))
    assert all(found == ranks[0] for found in ranks), "the ranks' averages are not the same, bit by bit"
    assert_known(ranks[0], None, EVERYTHING)
    assert_known(ranks[0], 0, elements(0, 2))
    assert_known(ranks[0], 1, elements(1, 3))


def test_a_rank_alone_without_accumulation_compares_steps_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "EVERY", 2)
    monkeypatch.setattr(noise_meter, "EARLY", 0)  # so that no gradient is in two estimates
    (found,) = run_ranks(1, lambda group: train(group, BATCH, epochs=16))
    assert_known(found, None, EVERYTHING)
    assert_known(found, 1, elements(1, 3))


def test_overlapped_buckets_are_measured_before_they_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_ranks(3, lambda group: train(group, 8, 2))
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 16)
    for found, wanted in zip(run_ranks(3, lambda group: train(group, 8, 2)), plain, strict=True):
        assert found[-1].to_numbers() == pytest.approx(wanted[-1].to_numbers(), rel=1e-9)


@pytest.mark.parametrize("world_size", [1, 3])
def test_token_weights_measure_by_samples(world_size: int) -> None:
    def by_tokens(job: Job, loss: torch.Tensor) -> None:
        job.backward(loss, weight=7.0 * job.samples)

    plain = run_ranks(world_size, lambda group: train(group, 6, 2))[0]
    found = run_ranks(world_size, lambda group: train(group, 6, 2, backward=by_tokens))[0]
    assert found[-1].to_numbers() == pytest.approx(plain[-1].to_numbers(), rel=1e-9)


@pytest.mark.parametrize("world_size", [1, 3])
def test_left_out_micro_batches_are_left_out_of_the_estimate(world_size: int) -> None:
    def sometimes(job: Job, loss: torch.Tensor) -> None:
        if (job.step + job._session.micro.piece[1]) % 3 == 0:  # type: ignore[union-attr]
            job.backward(None, weight=0)
        else:
            job.backward(loss)

    found = run_ranks(world_size, lambda group: train(group, 5, backward=sometimes))
    assert all(one == found[0] for one in found)
    assert_known(found[0], None, EVERYTHING)


def test_a_step_of_which_all_but_the_first_micro_batch_is_left_out_is_not_measured() -> None:
    def first_alone(job: Job, loss: torch.Tensor) -> None:
        micro = job._session.micro
        assert micro is not None
        if micro.last:
            job.backward(None, weight=0)
        else:
            job.backward(loss)

    found = run_ranks(1, lambda group: train(group, BATCH // 2, 3, backward=first_alone))[0]
    assert found and found[-1].mean() is None


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("max_batch", [12, BATCH])
def test_a_gradient_scaler_changes_nothing(world_size: int, max_batch: int) -> None:
    def scaled(group: ThreadGroup) -> Found:
        job = thread_job(group, BATCH, max_batch)
        model = Quadratic()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        model, optimizer, scaler = job.prepare(model, still(model), scaler)
        meter, found = job._session.measure_noise(), []
        for _ in job.epochs(2):
            for (x,) in job.dataloader(TensorDataset(DATA), shuffle=True, seed=5):
                job.backward(scaler.scale(model(x)))
                scaler.step(optimizer)
                scaler.update()
                if job.sync_gradients:
                    found.append(meter.averages)
        return found

    plain = run_ranks(world_size, lambda group: train(group, max_batch, 2))[0]
    found = run_ranks(world_size, scaled)[0]
    assert found[-1].groups[0].weight > 0
    assert found[-1].to_numbers() == pytest.approx(plain[-1].to_numbers(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_measure_the_same(dtype: torch.dtype) -> None:
    plain = run_ranks(3, lambda group: train(group, 8, 2))[0]
    found = run_ranks(3, lambda group: train(group, 8, 2, model=Quadratic(dtype)))[0]
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    assert found[-1].to_numbers() == pytest.approx(plain[-1].to_numbers(), rel=tolerance)


def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    def overflows(job: Job, loss: torch.Tensor) -> None:
        overflown = job.step == 5
        job.backward(loss * (math.inf if overflown else 1.0))
        if overflown:
            for parameter in job._session.parameters():  # as a gradient scaler does, the script leaves the step out
                parameter.grad = None

    for world_size in (1, 2):
        found = run_ranks(world_size, lambda group: train(group, 12, 1, backward=overflows))[0]
        same = [before.groups == after.groups for before, after in itertools.pairwise(found)]
        assert [step for step, unchanged in enumerate(same) if unchanged] == [6]  # where step 5 would come in


def test_the_averages_forget_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "EVERY", 3)
    monkeypatch.setattr(noise_meter, "EARLY", 0)
    found = run_ranks(2, lambda group: train(group, BATCH, 1))[0]
    full, tail = memory(3 * BATCH, BATCH), memory(3 * (SAMPLES % BATCH), BATCH)
    assert found[-1].groups[0].weight == pytest.approx(1 - full ** (SAMPLES // BATCH // 3 + 1))
    assert tail > full


def test_the_noise_is_measured_more_often_in_the_first_steps_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "EVERY", 16)
    meter = noise_meter.NoiseMeter([], [], lambda: BATCH)
    meter.gains = {100: (2.0,)}
    measured = []
    for meter.step in range(200):
        measured += [meter.step] * meter.is_due
    assert measured == [*range(16), *range(16, 100, 16), *range(100, 116), *range(128, 200, 16)]


STRETCH = torch.logspace(-3, 3, NUMEL, dtype=torch.float64)


class Stretched(Quadratic):
    """Its axes differ by a factor of a million: a plain noise scale is that of the steepest one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((torch.cat(list(self.parts)) - x).square() * STRETCH).sum(1).mean() / 2


def still_adam(model: nn.Module) -> torch.optim.Optimizer:
    parts = list(model.parameters())
    return torch.optim.AdamW([{"params": parts[::2]}, {"params": parts[1::2], "eps": 1e-3}], lr=0.0, betas=(0.9, 0.99))


def second_moments(job: Job) -> torch.Tensor:
    """Returns by what Adam divides the next gradient, squared."""
    roots = []
    for optimizer in job._session.state.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                roots.append(
                    (parameter, (state["exp_avg_sq"] / (1 - 0.99 ** float(state["step"]))).sqrt() + group["eps"])
                )
    found = [next(root for other, root in roots if other is one) for one in job._session.models[0].parameters()]
    return torch.cat(found).square()


@pytest.mark.parametrize(("world_size", "max_batch"), [(1, 8), (3, 16)])
def test_adam_measures_the_gradient_as_it_scales_it(world_size: int, max_batch: int) -> None:
    divisors: list[torch.Tensor] = []

    def after(job: Job) -> None:
        if job.is_main:
            divisors.append(second_moments(job))

    ranks = run_ranks(
        world_size, lambda group: train(group, max_batch, make=still_adam, model=Stretched(), after=after)
    )
    assert all(found == ranks[0] for found in ranks)
    values = estimates(ranks[0], None)
    known = divisors[FEWEST_STEPS - 1 : FEWEST_STEPS - 1 + len(values)]
    assert len(values) == len(divisors) - FEWEST_STEPS - 1 > 80
    variances, squares = VARIANCES * STRETCH**2, (GRADIENT * STRETCH) ** 2
    assert_mean([one.trace - float((variances / by).sum()) for one, by in zip(values, known, strict=True)], 0.0)
    wanted = [float(((squares - variances / SAMPLES) / by).sum()) for by in known]
    assert_mean([one.square - by for one, by in zip(values, wanted, strict=True)], 0.0)
    scale, plain = ranks[0][-1].noise_scale(), float(variances.sum() / squares.sum())
    each = float(
        (VARIANCES / (VARIANCES / BATCH + GRADIENT**2)).sum() / (GRADIENT**2 / (VARIANCES / BATCH + GRADIENT**2)).sum()
    )
    assert scale == pytest.approx(each, rel=0.2)
    assert abs(plain / each - 1) > 0.5


def test_what_adam_has_never_seen_counts_nothing() -> None:
    class Late(Quadratic):
        def __init__(self) -> None:
            super().__init__()
            self.rare = nn.Parameter(torch.zeros(4, dtype=torch.float64))
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = torch.tensor([1.0, 0.0, 0.0, 0.0] if self.steps < 30 else [1.0, 1e3, 1e3, 1e3], dtype=torch.float64)
            self.steps += 1
            return super().forward(x) + (self.rare * seen * x[:, :4]).sum(1).mean()

    (found,) = run_ranks(1, lambda group: train(group, BATCH, 2, make=still_adam, model=Late()))
    assert all(one.trace < 100 * BATCH * NUMEL for one in estimates(found, None))


def test_each_of_two_optimizers_is_measured_by_its_own_call() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Quadratic(), Quadratic()

    def both(group: ThreadGroup) -> Found:
        job = thread_job(group, BATCH, 16)
        model = Both()
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.0) for part in (model.one, model.two)]
        job.prepare(model, *optimizers)
        meter, found = job._session.measure_noise(), []
        for _ in job.epochs(4):
            for (x,) in job.dataloader(TensorDataset(DATA), shuffle=True, seed=5):
                for part, optimizer in zip((model.one, model.two), optimizers, strict=True):
                    job.backward(part(x), optimizer=optimizer)
                    optimizer.step()
                if job.sync_gradients:
                    found.append(meter.averages)
        return found

    for world_size in (1, 3):
        ranks = run_ranks(world_size, both)
        assert all(found == ranks[0] for found in ranks)
        for number in (0, 1):
            assert_known(ranks[0], number, EVERYTHING)


def test_two_calls_for_the_same_parameters_are_refused() -> None:
    def twice(job: Job, loss: torch.Tensor) -> None:
        job.backward(loss, retain_graph=True)
        job.backward(loss)

    for world_size in (1, 2):
        with pytest.raises(RuntimeError, match="called twice in a step for the same parameters"):
            run_ranks(world_size, lambda group: train(group, BATCH, 1, backward=twice))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: torch.optim.RMSprop(model.parameters()), "not for RMSprop"),
        (lambda model: torch.optim.Adagrad(model.parameters()), "not for Adagrad"),
    ],
)
def test_optimizers_whose_noise_is_another_are_refused(make: Callable[[nn.Module], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        run_ranks(1, lambda group: train(group, BATCH, 1, make=make))


def test_what_does_not_add_up_is_refused() -> None:
    parts = list(Quadratic().parameters())
    sgd, adam = torch.optim.SGD(parts[:2]), torch.optim.Adam(parts[2:])
    with pytest.raises(TypeError, match="not for both in one job"):
        NoiseMeter([sgd, adam], [], lambda: 1).follow()
    scalers = [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")]
    with pytest.raises(TypeError, match="one gradient scaler at most"):
        NoiseMeter([sgd], scalers, lambda: 1).follow()
    meter = NoiseMeter([sgd, torch.optim.SGD(parts[1:3])], [], lambda: 1)
    meter.follow()
    with pytest.raises(RuntimeError, match="in two parameter groups or two optimizers"):
        meter.groups_of(parts)


def test_it_is_not_measured_from_the_middle_of_a_loop() -> None:
    def late(job: Job, loss: torch.Tensor) -> None:
        job._session.noise = None
        job._session.measure_noise()

    with pytest.raises(RuntimeError, match="from the beginning of a training loop"):
        run_ranks(1, lambda group: train(group, BATCH, 1, backward=late))


def test_without_it_nothing_is_measured_and_nothing_rides_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_meter, "NoiseMeter", None)

    def plain(group: ThreadGroup) -> int:
        job = thread_job(group, BATCH, 12)
        model, optimizer = job.prepare(*(lambda model: (model, still(model)))(Quadratic()))
        for (x,) in job.dataloader(TensorDataset(DATA)):
            job.backward(model(x))
            optimizer.step()
        slot = next(iter(job._session.reducer._slots.values()))
        assert not any(bucket.runs for bucket in slot.layout.buckets)
        return len(slot.layout.noise)

    assert run_ranks(2, plain) == [0, 0]


# -- steps that are done again


class Played:
    """One rank whose steps a test plays by hand; two of them exchange what they write."""

    def __init__(self, group: ThreadGroup, model: nn.Module, *parts: nn.Module) -> None:
        self.job = thread_job(group, BATCH, BATCH)
        self.group = group
        self.job.prepare(model, *map(still, parts or (model,)))
        self.model, self.meter = model, self.job._session.measure_noise()

    def step(self, step: int, *, counts: bool = True) -> None:
        """Reduces a step; ``counts``: this rank is not among those that lost the reduction."""
        self.begin(step)
        self.reduce(step, counts=counts)

    def begin(self, step: int) -> None:
        self.job._session.buffers.begin_step()
        self.job._session.reducer.begin_step()
        self.meter.step = step

    def reduce(self, step: int, part: nn.Module | None = None, call: int = 0, *, counts: bool = True) -> None:
        """Reduces a call of the step, for a part of the model or for all of it."""
        reducer = self.job._session.reducer
        slot = reducer.slot(call, None if part is None else list(part.parameters()), -1 if part is None else call)
        size = BATCH // self.group.world_size
        first = step * BATCH + self.group.rank * size
        loss = (part or self.model)(DATA[first : first + size])
        reducer.accumulate(slot, loss, scale=size / BATCH, weight=float(size), logged=loss, samples=size, group=None)
        reducer.reduce(slot, self.group, Signals(position=0), samples=size, count=BATCH)  # type: ignore[arg-type]
        if counts:
            self.meter.commit()


def undisturbed(group: ThreadGroup) -> NoiseAverages:
    rank = Played(group, Quadratic())
    for step in range(6):
        rank.step(step)
    return rank.meter.averages


def test_a_step_that_is_done_again_counts_once_on_all_ranks() -> None:
    def broken(group: ThreadGroup) -> NoiseAverages:
        rank = Played(group, Quadratic())
        for step in range(6):
            if step in (2, 3):
                rank.step(step, counts=group.rank == 1)  # the other one lost it: all do it again
            if step == 4:
                rank.step(step, counts=False)
            rank.step(step)
        return rank.meter.averages

    wanted = run_ranks(2, undisturbed)
    assert wanted[0].groups[0].weight > 0
    assert run_ranks(2, broken) == wanted


def test_a_step_of_two_calls_that_is_done_again_counts_once_on_all_ranks() -> None:
    """One rank has both calls, and the other lost the second: nothing of either was applied."""

    def two(group: ThreadGroup, lost: int) -> NoiseAverages:
        model = nn.ModuleList([Quadratic(), Quadratic()])
        rank = Played(group, model, *model)
        for step in range(6):
            for again in range(1 + (step == lost)):
                rank.begin(step)
                for call, part in enumerate(model):
                    last = again == (step == lost)
                    rank.reduce(step, part, call, counts=last or call == 0 or group.rank == 1)
        return rank.meter.averages

    wanted = run_ranks(2, lambda group: two(group, -1))
    assert wanted[0].groups[0].weight > 0 and wanted[0] == wanted[1]
    for lost in (2, 3):
        assert run_ranks(2, lambda group, lost=lost: two(group, lost)) == wanted


def test_groups_that_come_in_between_keep_what_is_known_of_the_others() -> None:
    def grown(group: ThreadGroup) -> None:
        models = [Quadratic(), Quadratic(), Quadratic()]
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models[:2]]
        meter = NoiseMeter(optimizers, [], lambda: BATCH)
        numbers = [1.0, 2.0, 0.5, 3.0, 4.0, 0.5]
        meter.follow()
        meter.load_state_dict({**meter.state_dict(), "now": {"averages": numbers, "pending": None}})
        meter.gains = {0: (1.0,), 4: (2.0, 1.5, 3.0)}
        assert not meter.follow()
        optimizers[0].add_param_group({"params": list(models[2].parameters())})
        assert meter.follow()
        assert meter.averages.to_numbers() == [*numbers[:3], 0.0, 0.0, 0.0, *numbers[3:]]
        assert meter.gains == {0: (1.0, 1.0, 1.0, 1.0), 4: (2.0, 1.5, 2.0, 3.0)}

    run_ranks(1, grown)


def test_a_rank_that_lost_a_reduction_adopts_the_averages_of_one_that_did_not() -> None:
    handed: dict[int, Any] = {}

    def broken(group: ThreadGroup) -> NoiseAverages:
        rank = Played(group, Quadratic())
        for step in range(6):
            rank.step(step, counts=step != 3 or group.rank == 1)
            if step == 3:
                handed[group.rank] = rank.meter.state_dict()
                group.all_gather_bytes(b"")  # both are there
                if group.rank == 0:
                    rank.meter.load_state_dict(json.loads(json.dumps(handed[1])))
        return rank.meter.averages

    assert run_ranks(2, broken) == run_ranks(2, undisturbed)


def test_a_joiner_goes_on_with_what_is_pending() -> None:
    meters = run_ranks(2, lambda group: _few(group))
    for one in meters:
        other = NoiseMeter([still(Quadratic())], [], lambda: BATCH)
        other.follow()
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert other.state_dict() == one.state_dict()
        assert other.averages == one.averages and one.state_dict()["now"]["pending"]


def _few(group: ThreadGroup) -> NoiseMeter:
    rank = Played(group, Quadratic())
    for step in range(3):
        rank.step(step)
    return rank.meter
