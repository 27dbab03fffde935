"""A global batch that adapts while the training runs: agreed among the ranks, within its bounds, exact."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.sampling import indices
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.reconfigure.fingerprint import fingerprint
from elastic_launcher.torch.step import autoscale
from elastic_launcher.torch.step.learning_rate import rule_in_words
from elastic_launcher.variables import AUTOSCALE_BATCH_SIZE
from tests.support.scripts.memory_train import Narrow
from tests.support.scripts.scripted_policy import ScriptedPolicy
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SAMPLES, SEED, X, Y

FIRST, MICRO, EPOCHS = 7, 4, 4
SIZES = {1: 12, 2: 30, 3: 30, 4: 13, 9: 49, 10: 7}
"""By the step in which it is decided; the last one of an epoch is among them, and what changes nothing."""
ENTRIES = ((0, 7), (2, 12), (3, 30), (5, 13), (10, 49), (11, 7))


def steps_of(
    entries: tuple[tuple[int, int], ...], epochs: int, gains: Mapping[int, Sequence[float]] | None = None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields the global batch of each step, and its samples, up to the end of so many statistical epochs.

    ``gains`` are those of each entry, by its first step; 1 for the others.
    """
    epoch, start, size, sizes, gain, done = 0, 0, 0, dict(entries), 1.0, 0.0
    for step in count():
        if step in sizes:
            size, gain = sizes[step], (gains or {}).get(step, (1.0,))[0]
        stop = min(start + size, SAMPLES)
        yield size, torch.from_numpy(indices(SAMPLES, SEED, epoch, start, stop, True))
        done += (stop - start) * (gain / (size / FIRST))
        if done >= epochs * SAMPLES:
            return
        epoch, start = (epoch, stop) if stop < SAMPLES else (epoch + 1, 0)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = nn.Linear(FEATURES, 3).double()
    weight, bias = model.parameters()
    return model, torch.optim.SGD([{"params": weight}, {"params": bias, "lr": 0.02}], lr=0.1, momentum=0.9)


def rule(scale: float, gain: float, epochs: float) -> float:
    """A learning-rate rule that depends on nothing measured."""
    return scale**0.5


def adaptive_job(
    group: ThreadGroup, sizes: Mapping[int, int] = SIZES
) -> tuple[Job, nn.Module, torch.optim.Optimizer, ElasticLoader, ScriptedPolicy]:
    job = thread_job(group, FIRST, MICRO)
    model, optimizer = job.prepare(*model_and_optimizer())
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    loader.autoscale_batch_size(SAMPLES)
    policy = ScriptedPolicy(sizes)
    assert job._session.autoscaling is not None
    job._session.autoscaling.policy = policy
    return job, model, optimizer, loader, policy


@pytest.mark.parametrize("fits", [MICRO, 2, 1])  # in the memory of the rank that decides
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_what_one_rank_decides_trains_the_plain_model_on_all(world_size: int, fits: int) -> None:
    plain, plain_optimizer = model_and_optimizer()
    rates = [group["lr"] for group in plain_optimizer.param_groups]

    def body(group: ThreadGroup) -> tuple[list[int], Any, torch.Tensor, ScriptedPolicy, Any]:
        job, model, optimizer, loader, policy = adaptive_job(group)
        assert job._session.autoscaling is not None
        job._session.autoscaling.rule = rule
        held = []
        for _ in job.epochs(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                y_of_x = Narrow.apply(model(x), fits if group.rank == 0 else SAMPLES, "backward")
                job.backward(functional.cross_entropy(y_of_x, y))
                optimizer.step()
                assert [one["lr"] for one in optimizer.param_groups] == rates
                if job.sync_gradients:
                    held.append(job.global_batch_size)
        gains = job._session.measure_noise().gains
        return held, job._session.schedule.entries, model.state_dict()["weight"], policy, gains

    found = run_ranks(world_size, body)
    gains, expected = found[0][-1], []
    for size, chosen in steps_of(ENTRIES, EPOCHS, gains):
        for group, rate in zip(plain_optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * rule(size / FIRST, 1.0, 0.0)
        plain_optimizer.zero_grad()
        functional.cross_entropy(plain(X[chosen]), Y[chosen]).backward()
        plain_optimizer.step()
        expected.append(size)
    for rank, (held, entries, weight, policy, known) in enumerate(found):
        assert held == expected and entries == ENTRIES and known == gains
        assert weight.numpy() == pytest.approx(plain.state_dict()["weight"].numpy(), rel=1e-12)
        assert policy.asked == ([(s, b, world_size) for s, b in enumerate(expected)] if rank == 0 else [])


def test_without_decisions_and_with_factors_of_one_everything_is_bit_equal() -> None:
    def body(group: ThreadGroup, adaptive: bool) -> list[torch.Tensor]:
        job = thread_job(group, FIRST, MICRO)
        model, optimizer = job.prepare(*model_and_optimizer())
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        if adaptive:
            loader.autoscale_batch_size(SAMPLES)
        for _ in job.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
        return [*model.parameters()]

    fixed, adaptive = (run_ranks(2, lambda group, on=on: body(group, on))[0] for on in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(fixed, adaptive, strict=True))


def test_a_batch_goes_on_with_new_gains_where_the_noise_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared every third step of an entry; a gain that is less than 5 % off stays."""
    monkeypatch.setattr(autoscale, "REFRESH_STEPS", 3)

    def body(group: ThreadGroup) -> tuple[Any, Any, Any]:
        job, model, optimizer, loader, _ = adaptive_job(group, {1: 14})
        noise = job._session.measure_noise()
        noise.gains_of = lambda size: (1.0 + (size > FIRST) * (0.01 * job.step),) * 3  # type: ignore[method-assign]
        factors = []
        for _ in job.epochs(2):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.sync_gradients:
                    factors.append(job.lr_factor)
        proposal = job._session.autoscaling.proposal  # type: ignore[union-attr]
        return job._session.schedule.entries, noise.gains, (factors, proposal and proposal.reason)

    found = run_ranks(2, body)
    (entries, gains, (factors, reason)), (_, _, (_, other)) = found
    assert found[1][:2] == found[0][:2] and factors == found[1][2][0] and other is None
    assert entries[:3] == ((0, 7), (2, 14), (9, 14))
    assert [round(gains[step][0], 9) for step, _ in entries[1:3]] == [1.01, 1.08]
    assert factors[2:10] == pytest.approx([1.01] * 7 + [1.08])
    assert reason.startswith("gain 1.0") and " → 1." in reason


def test_the_gain_that_has_moved_most_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "REFRESH_STEPS", 3)

    def body(group: ThreadGroup) -> str:
        job, model, optimizer, loader, _ = adaptive_job(group, {1: 14})
        noise = job._session.measure_noise()
        noise.gains_of = lambda size: (2.0 + 0.01 * job.step, 2.0, 2.0 - 0.02 * job.step)  # type: ignore[method-assign]
        for _ in job.epochs(2):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
        proposal = job._session.autoscaling.proposal  # type: ignore[union-attr]
        assert proposal is not None
        return proposal.reason

    (reason,) = run_ranks(1, body)
    assert reason.startswith("gain of param group 1 1.")


def test_new_gains_are_rare_in_a_long_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "REFRESH_STEPS", 2)
    monkeypatch.setattr(autoscale, "REFRESHES", 4)

    def body(group: ThreadGroup) -> Any:
        job, model, optimizer, loader, _ = adaptive_job(group, {1: 14})
        session, noise = job._session, job._session.measure_noise()
        noise.gains_of = lambda size: (1.0 + job.step,) * 3  # type: ignore[method-assign]
        for _ in job.epochs(1000):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.step == 40:
                    job.stop("enough")
        return [step for step, _ in session.schedule.entries]

    ((first, second, *steps),) = run_ranks(1, body)
    assert (first, second) == (0, 2) and len(steps) > 3
    assert all(later - one >= max(2, one // 4) for one, later in pairwise([second, *steps]))


class Layerwise(torch.optim.AdamW):
    """One of a script's own, whose name says nothing."""


class Madam(torch.optim.SGD):
    """One whose name says something else."""


@pytest.mark.parametrize(("kind", "rule"), [(Layerwise, "adam"), (Madam, "adascale")])
def test_the_default_rule_is_that_by_which_the_gradients_are_measured(kind: Any, rule: str) -> None:
    def body(group: ThreadGroup) -> tuple[str, Any]:
        job = thread_job(group, FIRST, MICRO)
        model = nn.Linear(FEATURES, 3).double()
        job.prepare(model, kind(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y))
        loader.autoscale_batch_size(SAMPLES)
        return rule_in_words(job._session), fingerprint(job._session, loader)["learning-rate rule of optimizer 0"]

    assert run_ranks(1, body) == [(rule, rule)]


def test_what_a_step_decided_that_is_done_again_holds_no_longer() -> None:
    def body(group: ThreadGroup) -> Any:
        job, _, _, loader, _ = adaptive_job(group, {})
        session, engine = job._session, job._engine
        epochs = job.epochs(1)
        next(epochs)
        assert engine.begin_loop(loader) and engine.admit() and engine.begin_step()
        session.change_batch(20, 1)
        assert session.schedule.entries == ((0, 7), (1, 20))
        assert list(session.measure_noise().gains) == [1]
        assert engine.begin_step()  # once more: it had broken off
        engine.close_loop()
        return session.schedule.entries, session.measure_noise().gains

    assert run_ranks(1, body) == [(((0, 7),), {})]


@pytest.mark.parametrize("make", [
    lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
    lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=4),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=50),
])  # fmt: skip
def test_schedulers_see_base_rates(make: Any) -> None:
    """Those of an adaptive batch are those of a fixed one; in the steps themselves they are multiplied."""

    def rates(group: ThreadGroup, factor: float) -> tuple[list[Any], list[Any]]:
        job, model, optimizer, loader, _ = adaptive_job(group, {})
        assert job._session.autoscaling is not None
        job._session.autoscaling.rule = lambda scale, gain, epochs: factor
        scheduler = job.prepare(make(optimizer))
        seen, used = [], []
        optimizer.register_step_pre_hook(lambda o, *_: used.append([one["lr"] for one in o.param_groups]))
        for _ in job.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                loss = [1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []
                scheduler.step(*loss)
                if job.sync_gradients:
                    seen.append([one["lr"] for one in optimizer.param_groups])
                    assert job.lr_factor == factor
        return seen, used

    (base, plain), (seen, used) = (run_ranks(1, lambda g, f=f: rates(g, f))[0] for f in (1.0, 3.0))
    assert seen == base
    assert used == [[3.0 * rate for rate in rates] for rates in plain]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((6,), "max_batch_size is 6, below the global batch of 7 with which the training begins"),
        ((51,), "max_batch_size is 51, and the data set has 50 samples"),
        ((12.5,), "max_batch_size is 12.5; it must be a whole number"),
        ((30, (3, 2)), r"local_bsz_bounds is \(3, 2\); the first bound must not be above the second one"),
        ((30, (1, 5)), "local_bsz_bounds end at 5, above max_batch_per_gpu, 4"),
        ((30, (0, 4)), r"local_bsz_bounds\[0\] is 0; it must be a whole number, 1 or more"),
        ((30, 4), "local_bsz_bounds is 4; it must be two numbers of samples"),
        ((30, (1, 2, 3)), r"local_bsz_bounds is \(1, 2, 3\); it must be two numbers of samples"),
    ],
)
def test_bounds_that_can_not_be_kept_are_refused(arguments: Any, why: str) -> None:
    def body(group: ThreadGroup) -> None:
        loader = thread_job(group, FIRST, MICRO).dataloader(TensorDataset(X, Y))
        with pytest.raises(ValueError, match=why):
            loader.autoscale_batch_size(*arguments)

    run_ranks(1, body)


def test_a_largest_micro_batch_that_is_to_be_found_is_bounded_by_the_largest_global_batch() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, FIRST, FIRST)
        job._session.shares.finds_limit = True
        loader = job.dataloader(TensorDataset(X, Y))
        with pytest.raises(
            ValueError, match="local_bsz_bounds end at 31, above max_batch_size, 30, and no micro-batch"
        ):
            loader.autoscale_batch_size(30, (1, 31))
        loader.autoscale_batch_size(30, (2, 30))
        assert job._session.autoscaling is not None
        assert job._session.autoscaling.bounds == Bounds(FIRST, 30, 30, 2, epoch_samples=SAMPLES)

    run_ranks(1, body)


def test_micro_batches_of_more_than_the_first_batch_are_refused() -> None:
    def body(group: ThreadGroup) -> None:
        loader = thread_job(group, 2, MICRO).dataloader(TensorDataset(X, Y))
        with pytest.raises(ValueError, match="local_bsz_bounds begin at 3, above the global batch of 2"):
            loader.autoscale_batch_size(20, (3, 4))

    run_ranks(1, body)


def test_it_is_called_once_before_the_loop_on_the_loader_of_the_loop() -> None:
    def body(group: ThreadGroup) -> None:
        job, _, _, loader, _ = adaptive_job(group)
        other = job.dataloader(TensorDataset(X, Y))
        with pytest.raises(RuntimeError, match=r"autoscale_batch_size\(\) was called twice"):
            other.autoscale_batch_size(30)
        with pytest.raises(RuntimeError, match="this training loop is over another loader"):
            next(iter(other))
        job, model = thread_job(group, FIRST, MICRO), nn.Linear(FEATURES, 3).double()
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y))
        for _ in job.epochs(1):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y), weight=0)
                with pytest.raises(RuntimeError, match="called after the training had begun"):
                    loader.autoscale_batch_size(30)
                job.stop()

    run_ranks(1, body)


def test_a_script_that_allows_it_adapts_where_the_launcher_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> Any:
        job = thread_job(group, FIRST, MICRO)
        job.dataloader(TensorDataset(X, Y)).autoscale_batch_size(local_bsz_bounds=(1, 2))
        return job._session.autoscaling

    assert run_ranks(1, body) == [None]
    monkeypatch.setenv(AUTOSCALE_BATCH_SIZE, "30")
    (found,) = run_ranks(1, body)
    assert (found.bounds.base_batch_size, found.bounds.max_batch_size, found.bounds.max_micro_batch) == (FIRST, 30, 2)


@pytest.mark.parametrize(
    ("given", "option", "why"),
    [
        (30, "20", "max_batch_size is 30 in autoscale_batch_size.. but 20 in --autoscale-batch-size; give it in one"),
        (None, "6", "--autoscale-batch-size is 6, below the global batch of 7 .* raise --autoscale-batch-size, or"),
        (None, "51", "--autoscale-batch-size is 51, and the data set has 50 samples; lower --autoscale-batch-size to"),
        (None, "many", "ELASTIC_AUTOSCALE_BATCH_SIZE is 'many'; it must be a whole number, 1 or more"),
    ],
)
def test_what_the_launcher_asks_for_and_can_not_be_is_refused(
    given: int | None, option: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(group: ThreadGroup) -> None:
        loader = thread_job(group, FIRST, MICRO).dataloader(TensorDataset(X, Y))
        with pytest.raises(ValueError, match=why):
            loader.autoscale_batch_size(given)

    monkeypatch.setenv(AUTOSCALE_BATCH_SIZE, option)
    run_ranks(1, body)


def test_a_script_that_does_not_allow_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, FIRST, MICRO)
        job.prepare(*model_and_optimizer())
        why = r"--autoscale-batch-size is 30, and the script does not allow .* call loader.autoscale_batch_size\(\)"
        with pytest.raises(RuntimeError, match=why):
            next(iter(job.dataloader(TensorDataset(X, Y))))

    monkeypatch.setenv(AUTOSCALE_BATCH_SIZE, "30")
    run_ranks(1, body)


def test_a_sampler_of_the_scripts_own_is_refused_by_name() -> None:
    def body(group: ThreadGroup) -> None:
        with pytest.raises(TypeError, match="job.dataloader takes no sampler=: the job decides which samples come"):
            thread_job(group, FIRST, MICRO).dataloader(TensorDataset(X, Y), sampler=[0])

    run_ranks(1, body)


@pytest.mark.parametrize("size", [6, 51])
def test_a_decision_out_of_bounds_is_an_error(size: int) -> None:
    def body(group: ThreadGroup) -> None:
        job, model, _, loader, _ = adaptive_job(group, {0: size})
        with pytest.raises(ValueError, match=f"step 0: the policy proposed a global batch of {size}, which must be"):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))

    run_ranks(1, body)


@pytest.mark.parametrize("wrong", [lambda scale, gain, epochs: float("nan"), lambda scale, gain, epochs: 0.0])
def test_a_rule_that_returns_no_factor_is_refused(wrong: Any) -> None:
    def body(group: ThreadGroup) -> None:
        job, model, optimizer, loader, _ = adaptive_job(group)
        assert job._session.autoscaling is not None
        job._session.autoscaling.rule = wrong
        with pytest.raises(
            ValueError, match=r"the learning-rate rule <lambda> returned .* must return a finite number"
        ):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()

    run_ranks(1, body)


def test_batch_norm_is_warned_of_once_and_needs_three_samples_at_a_time() -> None:
    def body(group: ThreadGroup, micro: int, drop_last: bool = True) -> list[str]:
        job = thread_job(group, FIRST, micro)
        model = nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3)).double()
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), drop_last=drop_last)
        loader.autoscale_batch_size(30)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in job.epochs(2):
                for x, y in loader:
                    job.backward(functional.cross_entropy(model(x), y))
        return [str(one.message) for one in told if "statistics of each micro-batch" in str(one.message)]

    assert len(run_ranks(1, lambda group: body(group, 3))[0]) == 1
    with pytest.raises(ValueError, match="a step of 3 samples in micro-batches of at most 2 has one of a single"):
        run_ranks(1, lambda group: body(group, 2))
    with pytest.raises(ValueError, match="layer '1' takes statistics of at least two .* loader with drop_last=True"):
        run_ranks(1, lambda group: body(group, 3, drop_last=False))


def test_an_optimizer_without_a_learning_rate_is_refused() -> None:
    class NoRate(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            """Does nothing."""

    def body(group: ThreadGroup) -> None:
        job, model = thread_job(group, FIRST, MICRO), nn.Linear(FEATURES, 3).double()
        job.prepare(model, NoRate(model.parameters()))
        loader = job.dataloader(TensorDataset(X, Y))
        loader.autoscale_batch_size(30)
        with pytest.raises(TypeError, match=r"optimizer 0 \(NoRate\) has a param group without `lr`"):
            next(iter(loader))

    run_ranks(1, body)


def test_the_rehearsal_tries_the_largest_micro_batch_that_a_decision_may_bring() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, tuple[int, int, int]]]:
        job, _, _, loader, _ = adaptive_job(group)
        epochs = job.epochs(1)
        next(epochs)
        assert job._engine.begin_loop(loader)
        found = []
        for step in (0, SAMPLES // FIRST):  # the last one is a tail of one sample
            session = job._session
            session.move_to(replace(session.position, step=step, step_in_epoch=step))
            micro = job._engine._rehearsal(MICRO)
            found.append((micro.count, micro.piece))
        job._engine.close_loop()
        return found

    assert run_ranks(1, body) == [[(SAMPLES, (0, 0, MICRO)), (SAMPLES, (0, SAMPLES - MICRO, MICRO))]]


def test_ranks_with_other_bounds_do_not_train_together() -> None:
    def body(group: ThreadGroup, *bounds: Any) -> dict[str, Any]:
        job = thread_job(group, FIRST, MICRO)
        loader = job.dataloader(TensorDataset(X, Y))
        fixed = fingerprint(job._session, loader)
        loader.autoscale_batch_size(*bounds)
        return {name: value for name, value in fingerprint(job._session, loader).items() if name not in fixed}

    assert run_ranks(1, lambda group: body(group, 40)) == [
        {"adaptive batch": "up to 40 samples, 1 to 4 samples a micro-batch"}
    ]
    assert run_ranks(1, lambda group: body(group, 40, (2, 3), False)) == [
        {"adaptive batch": "up to 40 samples, 2 to 3 samples a micro-batch, one at a time"}
    ]


@pytest.mark.parametrize("world_size", [1, 2])
def test_micro_batches_stay_within_their_bound(world_size: int) -> None:
    def body(group: ThreadGroup) -> set[int]:
        job = thread_job(group, FIRST, SAMPLES)
        model, optimizer = job.prepare(*model_and_optimizer())
        loader = job.dataloader(TensorDataset(X, Y))
        loader.autoscale_batch_size(SAMPLES, (1, 3))
        sizes = set()
        for x, y in loader:
            job.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            sizes.add(len(x))
        return sizes

    assert (
        max(size for sizes in run_ranks(world_size, body) for size in sizes) == 3
    )  # 7 samples are (3, 2, 2), (2, 2), (3)


@pytest.mark.parametrize(("drop_last", "counts"), [(False, [30, 13, 30]), (True, [30, 30, 30])])
def test_a_job_that_resumes_with_a_smaller_maximum_goes_on_with_that(drop_last: bool, counts: list[int]) -> None:
    """In the middle of an epoch, too: seven of its samples are used."""

    def body(group: ThreadGroup) -> tuple[list[int], Any, Any, str]:
        job = thread_job(group, FIRST, MICRO)
        model, optimizer = job.prepare(*model_and_optimizer())
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED, drop_last=drop_last)
        loader.autoscale_batch_size(30)
        session = job._session
        assert session.autoscaling is not None
        session.autoscaling.policy = ScriptedPolicy({})
        session.take_schedule(BatchSchedule(((0, FIRST), (1, SAMPLES - 5))))
        session.move_to(replace(session.position, step=1, step_in_epoch=1, samples=FIRST))
        noise = session.measure_noise()
        noise.follow()
        noise.load_state_dict({**noise.state_dict(), "now": {"averages": [1.0, 70.0, 1.0] * 2, "pending": None}})
        found = []
        for epoch in job.epochs(9):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.sync_gradients:
                    assert job.micro is not None
                    found.append(job.micro.count)
            if epoch == 2:
                break
        assert session.autoscaling.proposal is not None
        return found[:3], session.schedule.entries, noise.gains[1][0], session.autoscaling.proposal.reason

    for found, entries, gain, reason in run_ranks(2, body):
        assert found == counts
        assert entries == ((0, FIRST), (1, 30))
        assert gain == pytest.approx(11 / (10 * FIRST / 30 + 1))
        assert reason == "global batch 45 → 30: the job resumed with a maximum of 30 samples"


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_with_the_first_batch_is_a_statistical_epoch(drop_last: bool) -> None:
    def body(group: ThreadGroup) -> list[float]:
        job = thread_job(group, FIRST + 4, MICRO)
        model, optimizer = job.prepare(*model_and_optimizer())
        loader = job.dataloader(TensorDataset(X, Y), drop_last=drop_last)
        loader.autoscale_batch_size(SAMPLES)
        job._session.autoscaling.policy = ScriptedPolicy({})  # type: ignore[union-attr]
        found = []
        for _ in job.epochs(2):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
            found.append(job.statistical_epoch)
        return found

    assert run_ranks(1, body) == [[1.0, 2.0]]


def test_a_rate_that_a_hook_of_the_step_changes_is_kept() -> None:
    def body(group: ThreadGroup) -> list[float]:
        job, model, optimizer, loader, _ = adaptive_job(group, {0: 28})
        assert job._session.autoscaling is not None
        job._session.autoscaling.rule = rule  # twice the rate, from the second step on

        def halve(one: torch.optim.Optimizer, *_: Any) -> None:
            for group in one.param_groups:
                group["lr"] *= 0.5

        optimizer.register_step_post_hook(halve)
        rates = []
        for x, y in loader:
            job.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            if job.sync_gradients:
                rates.append(optimizer.param_groups[0]["lr"])
        return rates[:3]

    assert run_ranks(1, body) == [pytest.approx([0.05, 0.025, 0.0125])]
