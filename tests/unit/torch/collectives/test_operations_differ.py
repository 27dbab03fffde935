"""Ranks that do different things together learn of each other, each of them, whatever they mix up.

Ranks that do the same exchange nothing for it in a steady training.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SEED, X

APART = "ranks wait for each other in different operations"


class Script:
    """A small model and a large one with batch statistics, each with an optimizer; what a rank does is the test's."""

    def __init__(self, job: Job) -> None:
        self.job = job
        torch.manual_seed(0)
        models = nn.Linear(FEATURES, 1), nn.Sequential(nn.Linear(FEATURES, 40), nn.BatchNorm1d(40), nn.Linear(40, 1))
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        self.models = job.prepare(*(model.double() for model in models))
        self.optimizers = job.prepare(*optimizers)
        self.test = job.dataloader(TensorDataset(X))

    def train(self, number: int, x: torch.Tensor) -> None:
        """Trains one of the models."""
        self.job.backward(self.models[number](x).square().mean(), optimizer=self.optimizers[number])
        self.optimizers[number].step()

    def evaluate(self) -> None:
        self.job.evaluate(lambda x: {"loss": self.models[0](x).sum()}, self.test)


Body = Callable[[Script, int, torch.Tensor], None]


def play(world_size: int, body: Body, epochs: int = 1, after: Callable[[Script, int], None] | None = None) -> list[str]:
    """Trains with this loop body; returns what ended each rank's script, "" where nothing did."""

    def run(group: ThreadGroup) -> str:
        job = thread_job(group, 12, 12)
        script = Script(job)
        try:
            for _ in job.epochs(epochs):
                for (x,) in job.dataloader(TensorDataset(X[:48]), seed=SEED):
                    body(script, group.rank, x)
                if after is not None:
                    after(script, group.rank)
        except RuntimeError as error:
            return str(error)
        return ""

    return run_ranks(world_size, run)


def at(step: int, then: Callable[[Script, torch.Tensor], None], *, every_rank: bool = False) -> Body:
    """A body that trains the first model but at one step, where rank 1 does something else."""

    def body(script: Script, rank: int, x: torch.Tensor) -> None:
        if script.job.step == step and (every_rank or rank == 1):
            then(script, x)
        else:
            script.train(0, x)

    return body


def _frozen(script: Script, x: torch.Tensor) -> None:
    script.models[0].bias.requires_grad_(False)
    script.train(0, x)


def _evaluated(script: Script, x: torch.Tensor) -> None:
    script.evaluate()
    script.train(0, x)


def _reduced(script: Script, x: torch.Tensor) -> None:
    script.job.reduce({"a": 1.0})
    script.train(0, x)


def _each_third_time(script: Script, rank: int, x: torch.Tensor) -> None:
    step = script.job.step
    script.train(0, x)
    if step % 3 == 0:
        script.train(1, x)


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize(
    ("then", "said"),
    [
        pytest.param(lambda s, x: s.train(1, x), "rank 1 is in job.backward for optimizer 1 (call 1", id="larger"),
        pytest.param(_evaluated, "rank 1 is in job.evaluate of loss over 50 samples", id="evaluates"),
        pytest.param(_reduced, "rank 1 is in job.reduce of the mean of a", id="reduces"),
    ],
)
def test_each_rank_names_both_sides(step: int, then: Callable[[Script, torch.Tensor], None], said: str) -> None:
    found = play(3, at(step, then))
    assert len(set(found)) == 1 and APART in found[0], found
    assert said in found[0] and f"ranks 0, 2 are in job.backward for optimizer 0 (call 1 of step {step})" in found[0]


def test_a_second_call_that_only_one_rank_makes_is_named() -> None:
    def body(script: Script, rank: int, x: torch.Tensor) -> None:
        script.train(0, x)
        if rank == 0 and script.job.step == 3:
            script.train(1, x)

    found = play(2, body)
    assert len(set(found)) == 1, found
    assert "rank 0 is in job.backward for optimizer 1 (call 2 of step 2), rank 1 is in job.backward" in found[0]


def test_a_parameter_that_is_frozen_on_one_rank_only_is_named() -> None:
    (found, same) = play(2, at(2, _frozen))
    assert found == same and "ranks reduce different gradients" in found and "have to be trained on every rank" in found


def test_an_evaluation_of_one_rank_alone_after_the_loop_is_named() -> None:
    def after(script: Script, rank: int) -> None:
        if rank == 0:
            script.evaluate()

    found = play(2, lambda script, rank, x: script.train(0, x), 2, after)
    assert len(set(found)) == 1 and APART in found[0], found
    assert "rank 0 is in job.evaluate" in found[0] and "rank 1 is in job.backward for optimizer 0" in found[0]


def test_data_sets_of_different_sizes_are_not_evaluated_together() -> None:
    def after(script: Script, rank: int) -> None:
        test = script.job.dataloader(TensorDataset(X[: 40 + rank]))
        script.job.evaluate(lambda x: {"loss": x.sum()}, test)

    found = play(2, lambda script, rank, x: script.train(0, x), 1, after)
    assert len(set(found)) == 1 and "ranks reduce different values" in found[0], found
    assert "over 40 samples" in found[0] and "over 41 samples" in found[0]


def test_ranks_that_mean_different_reductions_of_the_same_names_are_named() -> None:
    def after(script: Script, rank: int) -> None:
        script.job.reduce({"a": 1.0}, op="max" if rank else "sum")

    found = play(2, lambda script, rank, x: script.train(0, x), 1, after)
    assert len(set(found)) == 1 and "job.reduce of the sum of a" in found[0] and "of the max of a" in found[0], found


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(at(2, lambda s, x: s.train(1, x), every_rank=True), id="another optimizer"),
        pytest.param(at(2, _frozen, every_rank=True), id="a frozen parameter"),
        pytest.param(at(2, _evaluated, every_rank=True), id="an evaluation"),
        pytest.param(at(0, _reduced, every_rank=True), id="a sum"),
        pytest.param(_each_third_time, id="a generator each third time"),
    ],
)
def test_what_all_ranks_do_differently_from_before_is_no_error(body: Body) -> None:
    assert play(3, body, 3) == [""] * 3


@pytest.mark.parametrize("stops", [(0,), (2,), (0, 1, 2)])
def test_a_stop_of_some_ranks_ends_all_whatever_the_others_are_about_to_reduce(stops: tuple[int, ...]) -> None:
    def body(script: Script, rank: int, x: torch.Tensor) -> None:
        script.train(script.job.step % 2, x)
        if script.job.step == 3 and rank in stops:
            script.job.stop()

    assert play(3, body, 4) == [""] * 3


def test_a_steady_training_exchanges_nothing_but_gradients() -> None:
    def run(group: ThreadGroup) -> list[int]:
        job = thread_job(group, 12, 12)
        script, numbers = Script(job), []
        for _ in job.epochs(4):
            for (x,) in job.dataloader(TensorDataset(X[:48]), seed=SEED):
                before = group._number
                script.train(0, x)
                numbers.append(group._number - before)
        return numbers

    found = run_ranks(2, run)[0]
    gradients = 1 + 1  # a bucket, and the batch norm's count of batches
    assert found == [1 + gradients] * 2 + [gradients] * (len(found) - 2)


def test_no_rank_waits_for_others_where_they_wait_for_it() -> None:
    def run(group: ThreadGroup) -> str:
        job = thread_job(group, 12, 12)
        try:
            with job.first_on_node():
                job.reduce(1.0)
        except RuntimeError as error:
            return str(error)
        return ""

    assert all("job.reduce was called inside job.first_on_node" in found for found in run_ranks(2, run))


def both(then: Callable[[Script, int], None]) -> Body:
    """A body that reduces the gradients of both models together, and leaves it to the test what acts."""

    def body(script: Script, rank: int, x: torch.Tensor) -> None:
        script.job.backward(sum(model(x).square().mean() for model in script.models))  # type: ignore[arg-type]
        then(script, rank)

    return body


@pytest.mark.parametrize("step", [0, 1, 3])
def test_an_optimizer_that_steps_on_one_rank_only_is_named_in_the_next_step(step: int) -> None:
    def then(script: Script, rank: int) -> None:
        script.optimizers[int(rank == 1 and script.job.step == step + 1)].step()

    found = play(3, both(then))  # of four steps: the last one is compared at the end
    assert len(set(found)) == 1, found
    assert "on ranks 0, 2: optimizer 0; on rank 1: optimizer 1." in found[0], found
    assert f"before step {step + 1} is not the same" in found[0]


def test_optimizers_that_step_in_another_order_are_named() -> None:
    def then(script: Script, rank: int) -> None:
        for number in (0, 1) if rank or script.job.step != 2 else (1, 0):
            script.optimizers[number].step()

    found = play(2, both(then))
    assert len(set(found)) == 1 and "on rank 0: optimizer 1, optimizer 0; on rank 1: optimizer 0, op" in found[0], found


def test_an_optimizer_that_steps_outside_of_the_loop_on_one_rank_is_named_at_the_end() -> None:
    def after(script: Script, rank: int) -> None:
        if rank == 0:
            script.optimizers[1].step()

    found = play(2, lambda script, rank, x: script.train(0, x), 1, after)
    assert len(set(found)) == 1 and "on rank 0: optimizer 0, optimizer 1; on rank 1: optimizer 0." in found[0], found


def test_what_all_ranks_step_in_turn_is_no_error() -> None:
    def then(script: Script, rank: int) -> None:
        step = script.job.step
        for number in ((0,), (1,), (), (1, 0))[step % 4]:
            script.optimizers[number].step()

    assert play(3, both(then), 3) == [""] * 3
