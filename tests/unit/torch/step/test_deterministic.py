"""With virtual ranks a training comes to the same bits at any number of ranks.

Ranks are threads here (`thread_group`), processes in tests/local.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

VIRTUAL = 4
BATCH, MOST, SAMPLES, FEATURES = 24, 4, 62, 6  # an epoch ends with a step of 14 samples
X = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (SAMPLES,), generator=torch.Generator().manual_seed(2))


def build(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Makes a model with batch norm and dropout, whose gradients are rounded differently in any other order."""
    torch.manual_seed(3)
    layers = (nn.Linear(FEATURES, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 3))
    return nn.Sequential(*layers).to(dtype)


@dataclass
class Result:
    """What a rank's training came to.

    Attributes:
        state: Weights and buffers.
        losses: `job.loss` of each step.
        sums: Of the evaluation.
        total: What `job.track` has summed up.
    """

    state: dict[str, torch.Tensor]
    losses: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    total: float = 0.0


Step = Callable[[Job, nn.Module, torch.Tensor, torch.Tensor], None]


def plain(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    job.backward(functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y))


def train(
    world_size: int,
    virtual_ranks: int = VIRTUAL,
    step: Step = plain,
    model: Callable[[], nn.Module] = build,
    batch: int = BATCH,
) -> list[Result]:
    models = [model() for _ in range(world_size)]

    def body(group: ThreadGroup) -> Result:
        job = thread_job(group, batch, MOST, seed=5, virtual_ranks=virtual_ranks)
        mine = models[group.rank]
        mine, optimizer = job.prepare(mine, torch.optim.AdamW(mine.parameters(), lr=0.02))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=7)
        total = torch.zeros(())
        job.track({"total": total}, op="sum")
        result = Result({})
        for _ in job.epochs(2):
            for x, y in loader:
                total += x.abs().sum()
                step(job, mine, x, y)
                optimizer.step()
                if job.sync_gradients:
                    result.losses.append(job.loss)
        mine.eval()
        dtype = next(mine.parameters()).dtype
        found = job.evaluate(
            lambda x, y: {"loss": functional.cross_entropy(mine(x.to(dtype)).float(), y, reduction="sum")}, loader
        )
        result.sums, result.total, result.state = found, total.item(), mine.state_dict()
        return result

    return run_ranks(world_size, body)


def assert_equal(mine: Result, other: Result) -> None:
    differing = [name for name in mine.state if not torch.equal(mine.state[name], other.state[name])]
    assert differing == []
    assert mine.losses == other.losses
    assert mine.sums == other.sums
    assert mine.total == other.total


@pytest.fixture(scope="module")
def alone() -> Result:
    return train(1)[0]


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_weights_statistics_losses_and_evaluation_are_bit_equal(alone: Result, world_size: int) -> None:
    for found in train(world_size):
        assert_equal(found, alone)


def test_without_virtual_ranks_they_are_not(alone: Result) -> None:
    """The test can tell: sums in another order, and other random numbers, come to other bits."""
    one, two = train(1, virtual_ranks=0)[0], train(2, virtual_ranks=0)[0]
    assert any(not torch.equal(one.state[name], two.state[name]) for name in one.state)


@pytest.mark.parametrize("virtual_ranks", [1, 6, 7])
def test_any_number_of_virtual_ranks_can_be_divided(virtual_ranks: int) -> None:
    """Runs of virtual ranks need not be aligned: some ranks send several sums."""
    wanted = train(1, virtual_ranks)[0]
    for world_size in sorted({2, virtual_ranks - 1, virtual_ranks} - {0, 1}):
        for found in train(world_size, virtual_ranks):
            assert_equal(found, wanted)


def test_bfloat16_weights_are_bit_equal() -> None:
    def model() -> nn.Module:
        torch.manual_seed(3)
        layers = (nn.Linear(FEATURES, 33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 3))
        return nn.Sequential(*layers).bfloat16()

    wanted = train(1, model=model)[0]
    assert wanted.state["0.weight"].dtype == torch.bfloat16
    for found in train(3, model=model):
        assert_equal(found, wanted)


def test_weights_of_micro_batches_that_are_no_whole_numbers_are_added_by_the_tree() -> None:
    def by_tokens(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        weights = x[:, 0].abs()
        loss = (functional.cross_entropy(model(x), y, reduction="none") * weights).sum() / weights.sum()
        job.backward(loss, weight=weights.sum())

    wanted = train(1, step=by_tokens)[0]
    for found in train(3, step=by_tokens):
        assert_equal(found, wanted)


def test_micro_batches_that_are_left_out_are_left_out_alike() -> None:
    """Of some virtual ranks all, of others a part."""

    def some(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        if x[0, 0] > 0.2:
            model(x)
            job.backward(None, weight=0)
        else:
            plain(job, model, x, y)

    wanted = train(1, step=some)[0]
    for world_size in (2, 4):
        for found in train(world_size, step=some):
            assert_equal(found, wanted)


def test_parameters_that_only_some_virtual_ranks_use_are_bit_equal() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.always, self.some, self.never = (nn.Linear(FEATURES, 3) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.always(x)
            return out + self.some(x) if x[0, 0] > 0.5 else out

    wanted = train(1, model=Unused)[0]
    for found in train(3, model=Unused):
        assert_equal(found, wanted)
    torch.manual_seed(3)
    assert torch.equal(wanted.state["never.weight"], Unused().state_dict()["never.weight"])


def test_virtual_ranks_without_samples_change_nothing() -> None:
    """With a batch of 4 in parts of two samples, which batch norm needs, two of four virtual ranks have none."""
    wanted = train(1, batch=4)[0]
    for world_size in (2, 3, 4):
        for found in train(world_size, batch=4):
            assert_equal(found, wanted)


def test_each_virtual_rank_counts_its_own_micro_batches_in_whole_buffers(alone: Result) -> None:
    """As ranks would: the largest number of them, not their sum."""
    steps = len(alone.losses)
    assert steps < int(alone.state["1.num_batches_tracked"]) <= 2 * steps  # two micro-batches in a full step


def test_a_step_that_is_done_again_comes_to_the_same_bits() -> None:
    """A rank does its part of a step again whose last micro-batch breaks off, without that one."""

    def leaving_out(breaks: bool) -> Step:
        def step(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
            loss = functional.cross_entropy(model(x), y)
            if job.step != 1 or job.micro is None or not job.micro.last:
                job.backward(loss)
                return
            if breaks:
                loss.register_hook(_refuse)
                with contextlib.suppress(ArithmeticError):  # raised in the first attempt
                    job.backward(loss)
            if not job.micro.dropped and not job.sync_gradients:
                job.backward(None, weight=0)

        return step

    wanted = train(1, step=leaving_out(breaks=False))[0]
    assert_equal(train(1, step=leaving_out(breaks=True))[0], wanted)


def _refuse(gradient: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError


def test_a_rank_that_stops_takes_part_in_the_reduction_of_the_others() -> None:
    """By 6 virtual ranks on 2 ranks, each of which brings two sums."""

    def stopping(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        plain(job, model, x, y)
        if job.step == 2 and job.world_size == (job.rank or 0) + 1:
            job.stop()

    wanted = train(1, 6, step=stopping)[0]
    assert len(wanted.losses) == 2
    for world_size in (2, 4):
        for found in train(world_size, 6, step=stopping):
            assert_equal(found, wanted)


def test_rows_of_a_data_set_come_from_the_same_batches() -> None:
    def body(group: ThreadGroup) -> torch.Tensor:
        job = thread_job(group, BATCH, MOST, virtual_ranks=VIRTUAL)
        loader = job.dataloader(TensorDataset(X, Y))
        rows = job.gather(lambda x, y: x + x.mean(0) + torch.rand(1), loader)
        assert isinstance(rows, torch.Tensor)
        return rows

    wanted = run_ranks(1, body)[0]
    assert len(wanted) == SAMPLES
    for world_size in (3, 5):
        assert all(torch.equal(found, wanted) for found in run_ranks(world_size, body))


def test_the_plan_shows_what_each_rank_does() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, ...]]:
        return [one.micro_batches for one in thread_job(group, BATCH, MOST, virtual_ranks=VIRTUAL).plan.shares]

    assert run_ranks(3, body)[0] == [(3, 3, 3, 3), (3, 3), (3, 3)]


def test_a_second_backward_of_a_micro_batch_is_refused() -> None:
    def twice(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        plain(job, model, x, y)
        plain(job, model, x, y)

    with pytest.raises(RuntimeError, match="called twice for one micro-batch, in a job with deterministic="):
        train(1, step=twice)


def test_an_adaptive_batch_is_refused() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, MOST, virtual_ranks=VIRTUAL)
        job.dataloader(TensorDataset(X, Y)).autoscale_batch_size(48)

    with pytest.raises(RuntimeError, match="leave max_batch_size or deterministic= out"):
        run_ranks(1, body)


def test_a_micro_batch_that_does_not_fit_is_not_divided() -> None:
    def too_large(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        with job.micro_batch():
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError) as raised:
        train(1, step=too_large)
    assert "micro-batches of fixed sizes" in raised.value.__notes__[0]


class Keeping(nn.Module):
    """A linear model with a buffer that its forward passes change."""

    def __init__(self, kept: torch.Tensor, write: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.write = nn.Linear(FEATURES, 3), write
        self.register_buffer("kept", kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.write(self.kept, x)
        return self.linear(x)


def test_a_whole_number_that_may_fall_is_that_of_the_virtual_ranks_with_samples() -> None:
    """A place in a ring, say: what a rank without virtual ranks had before the step may be larger."""

    def model() -> nn.Module:
        return Keeping(torch.tensor(7), lambda kept, x: kept.copy_((kept + len(x)) % 10))

    wanted = train(1, model=model)[0]
    for world_size in (3, 5):
        for found in train(world_size, model=model):
            assert_equal(found, wanted)


@pytest.mark.parametrize("world_size", [1, 2])
def test_booleans_that_a_forward_pass_changes_are_refused(world_size: int) -> None:
    with pytest.raises(RuntimeError, match="the buffer kept, whose booleans are not put back between the virtual"):
        train(world_size, model=lambda: Keeping(torch.tensor(False), lambda kept, x: kept.fill_(True)))


def test_a_buffer_whose_shape_follows_the_batch_is_refused_by_its_name() -> None:
    def write(kept: torch.Tensor, x: torch.Tensor) -> None:
        kept.resize_(len(x))

    with pytest.raises(RuntimeError, match=r"the buffer kept was float32\[1\] when the step began"):
        train(1, model=lambda: Keeping(torch.zeros(1), write))


def test_a_buffer_without_elements_is_left_alone() -> None:
    def model() -> nn.Module:
        return Keeping(torch.zeros(0, dtype=torch.float16), lambda kept, x: None)

    wanted = train(1, model=model)[0]
    for found in train(2, model=model):
        assert_equal(found, wanted)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_memory_for_sums_does_not_grow_with_the_steps(world_size: int) -> None:
    """With a batch of 4, two of four virtual ranks have no samples in any step."""

    def body(group: ThreadGroup) -> list[int]:
        job = thread_job(group, 4, MOST, virtual_ranks=VIRTUAL)
        model = build()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.02))
        sizes = []
        for x, y in job.dataloader(TensorDataset(X, Y)):
            plain(job, model, x, y)
            optimizer.step()
            ordered = job._session.ordered
            if job.sync_gradients and ordered is not None:
                sizes.append(len(ordered._spare))
        return sizes

    for sizes in run_ranks(world_size, body):
        assert len(sizes) > 10 and max(sizes) <= 3
