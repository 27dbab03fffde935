"""The reducer's invariant: its gradient is that of the whole batch in one process, whatever the number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from elastic_launcher.batch import share
from elastic_launcher.torch.collectives.consensus import Agreement, Signals
from elastic_launcher.torch.gradients.reducer import Reducer
from elastic_launcher.torch.state.buffers import ModelBuffers
from tests.support.thread_group import ThreadGroup, run_ranks

FEATURES = 6
STANDING = Signals(position=3)


class Model(nn.Module):
    """Small, with a layer that not every sample uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.second = nn.Linear(16, 16)
        self.never = nn.Linear(16, 3)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A mean, as everyone writes it."""
    return nn.functional.cross_entropy(model(x), y)


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, FEATURES, dtype=torch.float64, generator=generator), torch.randint(
        0, 3, (count,), generator=generator
    )


def reference(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Callable[..., torch.Tensor] = loss_of
) -> dict[str, torch.Tensor | None]:
    """The plain way: the whole batch, one backward pass."""
    plain = copy.deepcopy(model)
    loss(plain, x, y).backward()
    return {name: p.grad for name, p in plain.named_parameters()}


def make_reducer(model: nn.Module) -> Reducer:
    buffers = ModelBuffers()
    buffers.add([model])
    reducer = Reducer(lambda: list(model.parameters()), buffers, torch.device("cpu"))
    buffers.begin_step()
    reducer.begin_step()
    return reducer


def one_step(
    reducer: Reducer,
    model: nn.Module,
    group: ThreadGroup,
    x: torch.Tensor,
    y: torch.Tensor,
    max_batch: int,
    loss: Callable[..., torch.Tensor] = loss_of,
    signals: Signals = STANDING,
) -> Agreement:
    """What the training loop does in one step."""
    count = len(x)
    mine = share(count, max_batch, group.world_size, group.rank)
    slot = reducer.slot(0, None, -1)
    start = mine.start
    for number, size in enumerate(mine.micro_batches):
        part = slice(start, start + size)
        last = number == len(mine.micro_batches) - 1
        value = loss(model, x[part], y[part])
        reducer.accumulate(
            slot,
            value,
            scale=size / count,
            weight=float(size),
            logged=value,
            samples=size,
            group=group if last else None,
        )
        assert all(p.grad is None for p in model.parameters())
        start += size
    return reducer.reduce(slot, group, signals, samples=mine.samples, count=count)


def distance(model: nn.Module, wanted: dict[str, torch.Tensor | None]) -> float:
    """Relative 2-norm of the difference over all parameters; None must be None."""
    squares = norm = 0.0
    for name, parameter in model.named_parameters():
        expected = wanted[name]
        assert (parameter.grad is None) == (expected is None), name
        if expected is not None and parameter.grad is not None:
            squares += float((parameter.grad - expected).square().sum())
            norm += float(expected.square().sum())
    return (squares / norm) ** 0.5


@pytest.mark.parametrize("world_size", [*range(1, 13), 16, 17, 24, 31, 32, 47, 48, 49, 61, 64])
def test_gradient_is_that_of_the_whole_batch(world_size: int) -> None:
    torch.manual_seed(1)
    model = Model().double()
    for count, max_batch in ((48, 4), (61, 7), (5, 2)):
        x, y = data(count)
        wanted = reference(model, x, y)

        def body(group: ThreadGroup, x: torch.Tensor = x, y: torch.Tensor = y, max_batch: int = max_batch) -> nn.Module:
            mine = copy.deepcopy(model)
            one_step(make_reducer(mine), mine, group, x, y, max_batch)
            return mine

        for rank_model in run_ranks(world_size, body):
            assert distance(rank_model, wanted) < 1e-12


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_model_that_was_moved_and_back_between_two_steps(world_size: int) -> None:
    """To another device and back gives its gradients other memory, as another type and back does."""
    torch.manual_seed(1)
    model = Model().double()
    x, y = data(24)

    def body(group: ThreadGroup) -> nn.Module:
        mine = copy.deepcopy(model)
        reducer = make_reducer(mine)
        one_step(reducer, mine, group, -x, y, 5)
        mine.float().double()
        reducer.begin_step()
        one_step(reducer, mine, group, x, y, 5)
        return mine

    for rank_model in run_ranks(world_size, body):
        assert distance(rank_model, reference(model, x, y)) < 1e-12


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_token_weights_give_the_mean_over_all_tokens(world_size: int) -> None:
    torch.manual_seed(1)
    model = Model().double()
    x, y = data(24)
    y[::3] = -100  # ignored, as padding is

    def summed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y, ignore_index=-100)

    wanted = reference(model, x, y, summed)

    def body(group: ThreadGroup) -> tuple[nn.Module, float]:
        mine = copy.deepcopy(model)
        reducer = make_reducer(mine)
        slot = reducer.slot(0, None, -1)
        part = share(24, 3, world_size, group.rank)
        start = part.start
        for size in part.micro_batches:
            tokens = int((y[start : start + size] != -100).sum())
            loss = summed(mine, x[start : start + size], y[start : start + size])
            reducer.accumulate(
                slot, loss, scale=tokens / 24, weight=float(tokens), logged=loss, samples=size, group=None
            )
            start += size
        agreement = reducer.reduce(slot, group, Signals(position=0), samples=part.samples, count=24)
        return mine, agreement.loss

    plain = float(summed(model, x, y).detach())
    for rank_model, logged in run_ranks(world_size, body):
        assert distance(rank_model, wanted) < 1e-12
        assert logged == pytest.approx(plain, rel=1e-12)


def test_unused_on_some_ranks_is_zero_there_and_counts() -> None:
    torch.manual_seed(2)
    model = Model().double()
    x, y = data(8)

    def sometimes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = model(x)
        if bool(x[0, 0] == data(8)[0][0, 0]):  # only the rank that has the first sample
            out = out + model.never(torch.tanh(model.first(x)))
        return nn.functional.cross_entropy(out, y)

    def body(group: ThreadGroup) -> nn.Module:
        mine = copy.deepcopy(model)
        one_step(make_reducer(mine), mine, group, x, y, 4, sometimes)
        return mine

    first, second = run_ranks(2, body)
    assert first.never.weight.grad is not None and second.never.weight.grad is not None
    assert torch.equal(first.never.weight.grad, second.never.weight.grad)
    plain = copy.deepcopy(model)
    (sometimes(plain, x[:4], y[:4]) * 0.5 + loss_of(plain, x[4:], y[4:]) * 0.5).backward()
    assert torch.allclose(first.never.weight.grad, plain.never.weight.grad, rtol=1e-12, atol=0)


class Shared(nn.Module):
    """Uses one layer twice, under activation checkpointing, with large layers around it so that there are several
    buckets."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inp = nn.Linear(FEATURES, 1300)
        self.shared = nn.Linear(1300, 1300)
        self.out = nn.Linear(1300, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.inp(x))
        for _ in range(2):
            # ranks in threads share torch's generator: its lock and the interpreter's can wait for each other
            h = checkpoint(
                lambda v: torch.tanh(self.shared(v)), h, use_reentrant=self.reentrant, preserve_rng_state=False
            )
        return self.out(h)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("max_batch", [8, 2])
def test_shared_layers_under_checkpointing_keep_all_their_gradient(
    reentrant: bool, max_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 4096)
    torch.manual_seed(3)
    model = Shared(reentrant).double()
    x, y = data(8)
    wanted = reference(model, x, y)

    def body(group: ThreadGroup) -> list[float]:
        mine = copy.deepcopy(model)
        reducer = make_reducer(mine)
        found = []
        for _ in range(4):  # the order is learned in the first step and used from the second on
            reducer.begin_step()
            one_step(reducer, mine, group, x, y, max_batch)
            found.append(distance(mine, wanted))
        return found

    for distances in run_ranks(2, body):
        assert max(distances) < 1e-12


def test_a_changing_graph_costs_a_second_round_and_no_exactness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 64)
    torch.manual_seed(4)
    model = Model().double()
    x, y = data(8)

    def forwards(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    def otherwise(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(
            model.last(torch.tanh(model.first(x))) + model.never(torch.tanh(model.second(torch.tanh(model.first(x))))),
            y,
        )

    wanted = [reference(model, x, y, loss) for loss in (forwards, otherwise)]

    def body(group: ThreadGroup) -> float:
        mine = copy.deepcopy(model)
        reducer = make_reducer(mine)
        worst = 0.0
        for step in (0, 0, 1, 1, 0, 1, 0):
            reducer.begin_step()
            one_step(reducer, mine, group, x, y, 4, (forwards, otherwise)[step])
            worst = max(worst, distance(mine, wanted[step]))
        return worst

    assert max(run_ranks(2, body)) < 1e-12


class Turning(nn.Module):
    """Two layers of one bucket, whose gradients come in either order."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, 3)
        self.one = nn.Linear(FEATURES, 3, bias=False)
        self.other = nn.Linear(FEATURES, 3, bias=False)
        self.turned = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.other, self.one) if self.turned else (self.one, self.other)
        before = first(x)
        return self.last(torch.cat([before, second(x)], 1))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_batch", [4, 2])
def test_a_gradient_that_comes_after_its_bucket_has_gone_counts_in_full(
    max_batch: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rank has no other one for that parameter, and by a loss whose scale is applied afterwards."""
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 2 * 3 * FEATURES * 4)
    torch.manual_seed(8)
    model, (x, y) = Turning(), data(8)

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y).to(kind)

    def body(group: ThreadGroup) -> list[float]:
        mine = copy.deepcopy(model)
        reducer, found = make_reducer(mine), []
        for turned in (False, False, True, False, True):
            mine.turned = turned
            reducer.begin_step()
            one_step(reducer, mine, group, x.float(), y, max_batch, loss)
            found.append(distance(mine, reference(mine, x.float(), y, loss)))
        return found

    for distances in run_ranks(2, body):
        assert max(distances) < 1e-6


def test_a_gradient_that_came_late_in_a_try_that_broke_off_is_not_added_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 2 * 3 * FEATURES * 8)
    torch.manual_seed(8)
    model, (x, y) = Turning().double(), data(8)
    wanted = reference(model, x, y)

    def body(group: ThreadGroup) -> float:
        mine = copy.deepcopy(model)
        reducer = make_reducer(mine)
        for _ in range(2):  # the order is learned
            reducer.begin_step()
            one_step(reducer, mine, group, x, y, 4)
        reducer.begin_step()
        slot, part = reducer.slot(0, None, -1), slice(4 * group.rank, 4 * group.rank + 4)
        mine.turned = True
        loss = loss_of(mine, x[part], y[part])
        reducer.accumulate(slot, loss, scale=0.5, weight=4.0, logged=loss, samples=4, group=group)
        assert reducer._overlap.late
        for work in reducer._overlap.take_works():  # and no reduction, as where a peer is lost
            work.wait()
        mine.turned = False
        reducer.begin_step()
        one_step(reducer, mine, group, x, y, 4)
        return distance(mine, wanted)

    assert max(run_ranks(2, body)) < 1e-12


def test_a_buffer_of_another_type_keeps_no_gradient_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reduced in memory of its own, and is known last: buckets of gradients go before it."""
    monkeypatch.setattr("elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 64)
    torch.manual_seed(9)
    model, (x, y) = Model().double(), data(8)
    model.register_buffer("constant", torch.full((3,), 0.5, dtype=torch.float32))
    wanted = reference(model, x, y)

    def body(group: ThreadGroup) -> list[tuple[bool, float]]:
        mine = copy.deepcopy(model)
        reducer, found = make_reducer(mine), []
        for _ in range(2):
            reducer.begin_step()
            slot, part = reducer.slot(0, None, -1), slice(4 * group.rank, 4 * group.rank + 4)
            loss = loss_of(mine, x[part], y[part])
            reducer.accumulate(slot, loss, scale=0.5, weight=4.0, logged=loss, samples=4, group=group)
            begun = reducer.has_begun
            reducer.reduce(slot, group, STANDING, samples=4, count=8)
            found.append((begun, distance(mine, wanted)))
        return found

    for (_, first), (begun, second) in run_ranks(2, body):
        assert begun
        assert max(first, second) < 1e-12


def test_buffers_are_averaged_by_samples_and_constants_left_alone() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    model.register_buffer("constant", torch.full((3,), 0.1, dtype=torch.float64))
    x, y = data(7)

    def body(group: ThreadGroup) -> nn.Module:
        mine = copy.deepcopy(model)
        one_step(make_reducer(mine), mine, group, x, y, 10)
        return mine

    first, second = run_ranks(2, body)
    parts = []
    for part in (x[:4], x[4:]):
        plain = copy.deepcopy(model)
        plain(part)
        parts.append(plain[1].running_mean)
    wanted = parts[0] * (4 / 7) + parts[1] * (3 / 7)
    assert torch.allclose(first[1].running_mean, wanted, rtol=1e-13)
    assert torch.equal(first[1].running_mean, second[1].running_mean)
    assert int(first[1].num_batches_tracked) == 1
    assert torch.equal(first.constant, model.constant)


def test_a_replaced_backward_of_tensors_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the rehearsal nor in training: a framework may have it call job.backward, which called it again."""
    torch.manual_seed(1)
    model, (x, y) = Model().double(), data(8)
    wanted = reference(model, x, y)

    def again(*arguments: object, **options: object) -> None:
        raise RecursionError("job.backward was called inside itself")

    monkeypatch.setattr(torch.Tensor, "backward", again)

    def body(group: ThreadGroup) -> float:
        reducer = make_reducer(model)
        reducer.rehearse(loss_of(model, x, y), 0, None, -1)
        reducer.begin_step()
        one_step(reducer, model, group, x, y, 4)
        return distance(model, wanted)

    assert run_ranks(1, body)[0] < 1e-15


def test_signals_are_agreed_on_only_when_all_say_the_same() -> None:
    torch.manual_seed(6)
    model = Model().double()
    x, y = data(6)

    def body(ready: list[int | None], positions: list[int]) -> Callable[[ThreadGroup], Agreement]:
        def run(group: ThreadGroup) -> Agreement:
            mine = copy.deepcopy(model)
            signals = Signals(position=positions[group.rank], ready=ready[group.rank], stop=group.rank == 1)
            return one_step(make_reducer(mine), mine, group, x, y, 4, signals=signals)

        return run

    same = run_ranks(3, body([4, 4, 4], [9, 9, 9]))
    assert [a.formation for a in same] == [4, 4, 4] and all(a.same_position and a.stop == 1 for a in same)
    mixed = run_ranks(3, body([4, 5, 4], [9, 9, 9]))
    assert [a.formation for a in mixed] == [None, None, None]
    waiting = run_ranks(3, body([4, None, 4], [9, 12, 9]))
    assert [a.formation for a in waiting] == [None, None, None] and not any(a.same_position for a in waiting)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_model_in_half_precision_alone_reduces_its_gradient(world_size: int) -> None:
    """No bucket of its own carries the tail then."""
    torch.manual_seed(7)
    model = Model()
    x, y = data(8)
    wanted = reference(model, x.float(), y)
    halved = copy.deepcopy(model).bfloat16()

    def body(group: ThreadGroup) -> nn.Module:
        mine = copy.deepcopy(halved)
        one_step(make_reducer(mine), mine, group, x.bfloat16(), y, 2)
        return mine.float()

    for rank_model in run_ranks(world_size, body):
        assert distance(rank_model, wanted) < 0.05
