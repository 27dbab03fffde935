"""What a script does to gradients and weights beside `job.backward` and the prepared optimizers: followed, warned of,
or refused by name.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, X

BATCH = 10
DATA = TensorDataset(X)
Body = Callable[[Job, Any, Any, torch.Tensor], None]


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def train(
    body: Body, world_size: int = 2, max_batch: int = BATCH, make: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Trains with ``body(job, model, optimizer, x)`` as the loop body."""
    start = build()

    def play(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, max_batch)
        model = copy.deepcopy(start)
        optimizer = make(model.parameters()) if make else torch.optim.SGD(model.parameters(), lr=0.1)
        job.prepare(model, optimizer)
        for _ in job.epochs(1):
            for (x,) in job.dataloader(DATA):
                body(job, model, optimizer, x)
        return model

    return run_ranks(world_size, play)


def usual(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x))
    optimizer.step()
    optimizer.zero_grad()


def stray_before(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    if job.step == 2:
        model[2](torch.ones(4, dtype=torch.float64)).sum().backward()
    usual(job, model, optimizer, x)


def stray_after(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x))
    model[2](torch.ones(4, dtype=torch.float64)).sum().backward()
    optimizer.step()


def not_prepared(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x))
    torch.optim.Adam(model[2].parameters()).step()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("body", "max_batch", "said"),
    [
        (stray_before, BATCH, "2.weight has a gradient that does not come from job.backward"),
        (stray_before, 2, "2.weight has a gradient that does not come from job.backward"),
        (stray_after, 2, "2.weight has a gradient that does not come from job.backward"),
        (not_prepared, BATCH, "Adam steps 2.weight, and was not given to job.prepare"),
    ],
)
def test_a_gradient_or_a_step_that_peers_do_not_share_is_refused(
    body: Body, max_batch: int, said: str, world_size: int
) -> None:
    with pytest.raises(RuntimeError) as raised:
        train(body, world_size, max_batch)
    assert said in str(raised.value)


def test_a_gradient_of_a_rank_without_a_share_is_refused_too() -> None:
    said: list[str] = []

    def on_one_rank(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        if job.samples == 0:
            loss_of(model, x).backward()
        try:
            usual(job, model, optimizer, x)
        except RuntimeError as error:
            said.append(str(error))
            raise

    with pytest.raises((RuntimeError, AssertionError)):  # the others wait for it in vain
        train(on_one_rank, world_size=BATCH + 1)
    assert said and said[0].startswith("0.weight has a gradient that does not come from job.backward")


def test_gradients_of_the_scripts_own_that_it_clears_are_its_own_affair() -> None:
    """An adversarial sample, say, is made with a backward pass of its own."""

    def body(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        loss_of(model, x).backward()
        model.zero_grad(set_to_none=job.step % 2 == 0)
        usual(job, model, optimizer, x)

    for found, wanted in zip(train(body), train(usual), strict=True):
        assert all(map(torch.equal, found.parameters(), wanted.parameters()))


def test_an_unprepared_optimizer_of_other_parameters_is_the_scripts_own_affair() -> None:
    own = nn.Parameter(torch.ones(3))

    def body(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        usual(job, model, optimizer, x)
        own.grad = torch.ones(3)
        torch.optim.SGD([own], lr=0.1).step()

    train(body, world_size=1)
    assert (own < 1).all(), "its steps count"


def test_an_optimizer_that_is_stepped_by_a_hook_is_refused() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        model = build()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
        job.prepare(model, *optimizers.values())
        for (x,) in job.dataloader(DATA):
            job.backward(loss_of(model, x))

    said = r"optimizer \d \(SGD\) was stepped inside job\.backward, by a hook: .* after job\.backward\(loss\)"
    with pytest.warns(UserWarning, match="0.weight and 3 more have a hook"), pytest.raises(RuntimeError, match=said):
        run_ranks(1, play)


def test_hooks_on_parameters_are_warned_of_once() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, 4)
        model = build()
        model[2].weight.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
        optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))[1]
        for (x,) in job.dataloader(DATA):
            usual(job, model, optimizer, x)

    with pytest.warns(UserWarning) as caught:
        run_ranks(1, play)
    said = [str(one.message) for one in caught if "has a hook" in str(one.message)]
    assert len(said) == 1
    assert "the parameter 2.weight has a hook" in said[0]
    assert "docs/world-size.md" in said[0]


def test_a_hook_that_comes_later_is_warned_of_and_those_of_the_library_are_not() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, 2, 2)
        model = build()
        optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))[1]
        for (x,) in job.dataloader(DATA):
            usual(job, model, optimizer, x)
            if job.step == 3:
                model[2].bias.register_post_accumulate_grad_hook(lambda parameter: None)

    with pytest.warns(UserWarning) as caught:
        run_ranks(2, play)
    said = [str(one.message) for one in caught if "hook" in str(one.message)]
    assert len(said) == 2 and all("the parameter 2.bias has a hook" in one for one in said), said  # of two ranks


def test_no_hook_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(usual, 1, 3)
    assert [str(one.message) for one in caught] == []


class SharpnessAware(torch.optim.Optimizer):
    """Climbs to the worst weights near by, and steps from where it was with the gradient there."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.1})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def _of(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self._of()]).norm()
        for parameter in self._of():
            self.state[parameter]["old"] = parameter.clone()
            parameter.add_(parameter.grad * 0.1 / norm)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self._of():
            parameter.copy_(self.state[parameter]["old"])
        self.inner.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError


def sharpness_aware(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x))
    optimizer.first_step()
    job.backward(loss_of(model, x))
    optimizer.second_step()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_sharpness_aware_optimizer_trains_like_one_process(world_size: int) -> None:
    plain = build()
    optimizer = SharpnessAware(plain.parameters())
    for x in X.split(BATCH):
        loss_of(plain, x).backward()
        optimizer.first_step()
        loss_of(plain, x).backward()
        optimizer.second_step()
    for model in train(sharpness_aware, world_size, make=SharpnessAware):
        for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_the_optimizer_within_another_one_travels_too() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        optimizer = job.prepare(SharpnessAware(build().parameters()))
        assert job._session.state.optimizers == [optimizer, optimizer.inner]

    run_ranks(1, play)


def by_hand(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    """The same without the usual names of the methods."""
    job.backward(loss_of(model, x))
    if job.sync_gradients:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=0.01)
    optimizer.zero_grad()
    job.backward(loss_of(model, x))
    optimizer.step()


@pytest.mark.parametrize(("body", "make"), [(sharpness_aware, SharpnessAware), (by_hand, None)])
def test_two_passes_with_accumulation_are_refused(body: Body, make: Any) -> None:
    with pytest.raises(RuntimeError, match=r"0\.weight was changed between two .* raise max_batch_per_gpu"):
        train(body, 2, 3, make)


@pytest.mark.parametrize("least", [1, 2])
def test_two_passes_are_refused_before_a_shrink_could_make_them_wrong(least: int) -> None:
    def play(group: ThreadGroup) -> int:
        job = thread_job(group, BATCH, 5)
        job._session.shares.least_world_size = least
        model = build()
        optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))[1]
        for (x,) in job.dataloader(DATA):
            by_hand(job, model, optimizer, x)
        return job.step

    if least == 2:
        assert run_ranks(2, play) == [5, 5]
    else:
        said = r"0\.weight was changed between .* with 1 rank, as few as --nodes allows, a rank has 2\. Raise max_bat"
        with pytest.raises(RuntimeError, match=said):
            run_ranks(2, play)


def test_a_gradient_that_no_optimizer_takes_is_warned_of_once() -> None:
    def every_second(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        job.backward(loss_of(model, x))
        if job.step % 2 == 0:
            optimizer.step()

    with pytest.warns(UserWarning) as caught:
        train(every_second, world_size=1)
    said = [str(one.message) for one in caught]
    assert len(said) == 1
    assert "step 0 ended without optimizer.step(): its gradient is dropped" in said[0]


def test_a_scheduler_made_after_prepare_works_once_prepared() -> None:
    def rates(early: bool) -> list[float]:
        def play(group: ThreadGroup) -> list[float]:
            job = thread_job(group, BATCH, 3)
            model = build()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if not early:
                job.prepare(model, optimizer)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            job.prepare(*([model, optimizer] if early else []), scheduler)
            found = []
            for (x,) in job.dataloader(DATA):
                usual(job, model, optimizer, x)
                scheduler.step()
                if job.sync_gradients:
                    found.append(scheduler.get_last_lr()[0])
            return found

        return run_ranks(1, play)[0]

    assert rates(early=False) == rates(early=True) == [0.1, 0.05, 0.05, 0.025, 0.025]


def test_a_scheduler_that_was_not_prepared_is_warned_of() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _ = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        job.prepare(model, optimizer)
        for (x,) in job.dataloader(DATA):
            usual(job, model, optimizer, x)

    with pytest.warns(UserWarning, match=r"optimizer 0 \(SGD\) has a scheduler that was not given to job.prepare"):
        run_ranks(1, play)


def test_a_loss_of_one_element_may_have_any_shape() -> None:
    def odd(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        job.backward(loss_of(model, x).reshape(1, 1))
        assert isinstance(job.loss, float)
        optimizer.step()

    for found, wanted in zip(train(odd, 2, 3), train(usual, 2, 3), strict=True):
        assert all(map(torch.equal, found.parameters(), wanted.parameters()))


def test_a_graph_may_be_retained_for_a_second_pass() -> None:
    def twice(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
        out = model(x)
        job.backward(out.square().mean() / 2, retain_graph=True)
        job.backward(out.square().mean() / 2)
        optimizer.step()

    for found, wanted in zip(train(twice, 2, 3), train(usual, 2, 3), strict=True):
        for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-12)


def replaces_head(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x))
    if not job.sync_gradients and job.step == 1:
        model[2] = nn.Linear(4, 1).double()
    optimizer.step()


def gives_another_parameter(job: Job, model: Any, optimizer: Any, x: torch.Tensor) -> None:
    job.backward(loss_of(model, x), optimizer=optimizer)
    if not job.sync_gradients and job.step == 1:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, dtype=torch.float64))]})
    optimizer.step()


@pytest.mark.parametrize("body", [replaces_head, gives_another_parameter])
def test_parameters_that_change_between_two_micro_batches_of_a_step_are_refused(body: Body) -> None:
    with pytest.raises(
        RuntimeError, match=r"between two of its micro-batches a part of a model was replaced, or an op"
    ):
        train(body, 1, 5)
