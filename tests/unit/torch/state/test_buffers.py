"""Buffers of every kind: averaged, left alone, or refused by name; never cast, and never apart between ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, SAMPLES, X, Y

BATCH = 10

warnings.filterwarnings("ignore", message=".*(quantize|Sparse CSR|nested).*")


class Net(nn.Module):
    """A linear layer, a buffer, and what a forward pass does to it."""

    def __init__(
        self, buffer: torch.Tensor | None, write: Callable[[Any, torch.Tensor], None] = lambda *_: None
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(FEATURES, 1).double()
        self.register_buffer("kept", buffer)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self, x)
        return self.layer(x)


def train(job: Job, model: nn.Module, each: Callable[[], None] = lambda: None) -> nn.Module:
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.dataloader(TensorDataset(X, Y), seed=7)
    for _ in job.epochs(1):
        for x, _ in loader:
            each()
            job.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return model


def trained(world_size: int, make: Callable[[], nn.Module], max_batch: int = BATCH) -> list[Any]:
    models = [make() for _ in range(world_size)]  # threads share the random generator

    def body(group: ThreadGroup) -> nn.Module:
        return train(thread_job(group, BATCH, max_batch), models[group.rank])

    return run_ranks(world_size, body)


def angles(dtype: torch.dtype) -> torch.Tensor:
    return torch.polar(torch.ones(4, dtype=torch.float64), torch.arange(4, dtype=torch.float64) / 3).to(dtype)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.qint8)


CONSTANTS: dict[str, Callable[[], torch.Tensor]] = {
    "complex128": lambda: angles(torch.complex128),
    "complex64": lambda: angles(torch.complex64),
    "conjugated": lambda: angles(torch.complex128).conj(),
    "booleans": lambda: torch.tensor([True, False]),
    "expanded": lambda: torch.tensor([1.0]).expand(2, 3),
    "expanded booleans": lambda: torch.tensor([True, False]).expand(3, 2),
    "float8": lambda: torch.arange(4.0).to(torch.float8_e4m3fn),
    "unsigned": lambda: torch.tensor([1, 2**63], dtype=torch.uint64),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": quantized,
}


def text(tensor: torch.Tensor) -> str:
    if tensor.is_quantized:
        return str(tensor.dequantize())
    if tensor.is_complex():
        return str(tensor + 0)  # -0.0 is 0.0
    return str(tensor.float() if tensor.dtype == torch.float8_e4m3fn else tensor.to_dense())


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_constant_stays_what_it_is(kind: str, world_size: int) -> None:
    wanted = text(CONSTANTS[kind]())
    for model in trained(world_size, lambda: Net(CONSTANTS[kind]()), max_batch=3):
        assert text(model.kept) == wanted
        assert model.kept.dtype == CONSTANTS[kind]().dtype


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_buffer_is_averaged_by_samples(dtype: torch.dtype) -> None:
    def write(net: Any, x: torch.Tensor) -> None:
        net.kept.copy_(torch.view_as_complex(x[:, :2].contiguous()).mean().to(dtype))

    last = torch.view_as_complex(X[-BATCH:, :2].contiguous()).mean().to(dtype)
    for model in trained(3, lambda: Net(torch.zeros((), dtype=dtype), write)):
        assert torch.allclose(model.kept, last, rtol=1e-6 if dtype == torch.complex64 else 1e-12)


@pytest.mark.parametrize("kind", ["float8", "sparse", "quantized"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_no_rank_can_average_may_not_change(kind: str, world_size: int) -> None:
    def write(net: Any, x: torch.Tensor) -> None:
        net.kept = {
            "float8": lambda: x[0].to(torch.float8_e4m3fn),
            "sparse": lambda: x[:2].to_sparse(),
            "quantized": lambda: torch.quantize_per_tensor(x[0].float(), 0.1, 0, torch.qint8),
        }[kind]()

    with pytest.raises(RuntimeError, match=r"forward pass changes the buffer kept, .*persistent=False"):
        trained(world_size, lambda: Net(CONSTANTS[kind](), write))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_buffer_whose_shape_follows_the_batch_is_refused(world_size: int) -> None:
    def write(net: Any, x: torch.Tensor) -> None:
        net.kept = x.clone()

    said = rf"buffer kept was float64\[{BATCH}, 5\] when .* is float64\[\d, 5\] .*persistent=False"
    with pytest.raises(RuntimeError, match=said):
        trained(world_size, lambda: Net(torch.zeros(BATCH, FEATURES, dtype=torch.float64), write), max_batch=9)


@pytest.mark.parametrize("value", [2.0, True])
def test_a_forward_pass_may_put_an_expanded_tensor_in_a_buffers_place(value: float) -> None:
    start = torch.zeros(2, 3, dtype=torch.tensor(value).dtype)

    def write(net: Any, x: torch.Tensor) -> None:
        net.kept = torch.tensor([value]).expand(2, 3)

    for model in trained(2, lambda: Net(start.clone(), write)):
        assert torch.equal(model.kept, torch.full_like(start, value))


@pytest.mark.parametrize("kept", [torch.arange(4.0), torch.tensor([True, False, True, False])], ids=["scale", "mask"])
def test_a_second_backward_may_run_through_the_graph_that_has_saved_a_buffer(kept: torch.Tensor) -> None:
    def body(group: ThreadGroup) -> nn.Module:
        job, model = thread_job(group, 4, 4), models[group.rank]
        model, *optimizers = job.prepare(model, *(torch.optim.SGD([p], lr=0.1) for p in model.parameters()))
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(X[:8])):
                found = model(x) * model.kept if model.kept.is_floating_point() else model(x).where(model.kept, 0.0)
                for loss, optimizer in zip((found.square().mean(), found.mean()), optimizers, strict=True):
                    job.backward(loss, optimizer=optimizer, retain_graph=True)
                for optimizer in optimizers:
                    optimizer.step()
        return model

    models = [Net(kept.clone()) for _ in range(2)]
    for model in run_ranks(2, body):
        assert torch.equal(model.kept, kept)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_second_backward_does_not_read_what_the_first_one_has_averaged(tracked: bool) -> None:
    """Its gradient would be that of no loss: the forward pass had this rank's own value."""

    def write(net: Any, x: torch.Tensor) -> None:
        net.kept.mul_(0.5).add_(x.abs().mean(0))

    def body(group: ThreadGroup) -> None:
        job, model = thread_job(group, 4, 2), models[group.rank]
        model, *optimizers = job.prepare(model, *(torch.optim.SGD([p], lr=0.1) for p in model.parameters()))
        if tracked:
            job.track([model.kept], op="mean")
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(X[:8])):
                found = model(x) * model.kept
                for loss, optimizer in zip((found.square().mean(), found.mean()), optimizers, strict=True):
                    job.backward(loss, optimizer=optimizer, retain_graph=True)
                for optimizer in optimizers:
                    optimizer.step()

    models = [Net(torch.ones(FEATURES, dtype=torch.float64), write) for _ in range(2)]
    for model in models if tracked else ():
        model._non_persistent_buffers_set.add("kept")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run_ranks(2, body)


def test_a_second_backward_may_run_after_a_batch_norms_statistics_were_averaged() -> None:
    def body(group: ThreadGroup) -> torch.Tensor:
        job, model = thread_job(group, 20, 10), models[group.rank]
        model, *optimizers = job.prepare(model, *(torch.optim.SGD([p], lr=0.1) for p in model.parameters()))
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(X[:40])):
                found = model(x)
                for loss, optimizer in zip((found.square().mean(), found.mean()), optimizers, strict=True):
                    job.backward(loss, optimizer=optimizer, retain_graph=True)
                for optimizer in optimizers:
                    optimizer.step()
        return model.running_mean

    models = [nn.BatchNorm1d(FEATURES).double() for _ in range(2)]
    plain = nn.BatchNorm1d(FEATURES).double()
    for x in X[:40].split(20):
        plain(x)
    for found in run_ranks(2, body):
        torch.testing.assert_close(found, plain.running_mean, rtol=1e-12, atol=0.0)


FALLING = [torch.tensor(9), torch.tensor(9, dtype=torch.uint8), torch.tensor(True)]
"""A place in a ring, say, or a flag that is taken down."""


def fallen(start: torch.Tensor, batch: int, weights: list[list[float]]) -> list[torch.Tensor]:
    """Trains 3 steps with a buffer that each forward pass decrements or negates, and returns what it is on each rank.

    Args:
        batch: Samples of a step.
        weights: Of each `backward` of a micro-batch of one sample, by rank.
    """

    def write(net: Any, x: torch.Tensor) -> None:
        net.kept.copy_(net.kept.logical_not() if net.kept.dtype == torch.bool else net.kept - 1)

    def body(group: ThreadGroup) -> torch.Tensor:
        job, model = thread_job(group, batch, 1), models[group.rank]
        optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
        model, *optimizers = job.prepare(model, *optimizers)
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(X[: 3 * batch])):
                for optimizer, weight in zip(optimizers, weights[group.rank], strict=False):
                    job.backward(model(x).square().mean(), weight=weight, optimizer=optimizer)
                    optimizer.step()
        return model.kept

    models = [Net(start.clone(), write) for _ in weights]
    return run_ranks(len(weights), body)


@pytest.mark.parametrize("start", FALLING, ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_what_may_fall_is_that_of_the_rank_with_samples(start: torch.Tensor, world_size: int) -> None:
    for found in fallen(start, 1, [[1.0]] * world_size):
        assert found == (6 if start.dtype != torch.bool else False)


@pytest.mark.parametrize("start", FALLING, ids=str)
@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
def test_a_rank_whose_micro_batches_have_no_weight_leaves_no_trace(start: torch.Tensor, weights: list[float]) -> None:
    steps = 3 if any(weights) else 0
    for found in fallen(start, 2, [[weight] for weight in weights]):
        assert found == (start - steps if start.dtype != torch.bool else not steps)


@pytest.mark.parametrize("start", FALLING, ids=str)
def test_a_second_backward_without_weight_leaves_what_is_equal_on_all_ranks(start: torch.Tensor) -> None:
    first, second = fallen(start, 3, [[1.0, 0.0]] * 2)  # of which one has two micro-batches in each step
    assert first == second


def test_booleans_that_differ_between_ranks_are_an_error_that_names_them() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        job._engine._resizer.check_due = True  # as after each change of the membership
        train(job, Net(torch.tensor([group.rank == 0])))

    with pytest.raises(RuntimeError, match="the buffer kept on rank 1"):
        run_ranks(2, body)


def test_buffers_of_a_replaced_part_are_averaged() -> None:
    """A norm that takes another's place, and a buffer that comes with the first forward pass."""

    def write(net: Any, x: torch.Tensor) -> None:
        net.kept = x.mean(0) if net.kept is None else net.kept.copy_(x.mean(0))

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, BATCH)
        model = Net(None, write)
        model.norm = nn.BatchNorm1d(FEATURES).double()

        def replace() -> None:
            if job.step == 2:
                model.norm = nn.BatchNorm1d(FEATURES).double()
            model.norm(X[group.rank : group.rank + 5])

        return train(job, model, replace)

    first, second = run_ranks(2, body)
    assert torch.equal(first.norm.running_mean, second.norm.running_mean)
    assert torch.equal(first.kept, second.kept)
    assert torch.allclose(first.kept, X[SAMPLES - BATCH :].mean(0), rtol=1e-12)


@pytest.mark.parametrize("kind", CONSTANTS)
def test_it_reaches_a_joiner(kind: str) -> None:
    """Dense kinds travel; sparse and quantized ones are compared."""
    sender, receiver = Net(CONSTANTS[kind]()), Net(CONSTANTS[kind]())
    travels = kind not in ("sparse", "sparse rows", "quantized")
    if travels:
        receiver.kept = torch.zeros_like(receiver.kept)
    captured = TrainingState([sender]).capture()
    state = TrainingState([receiver])
    targets = state.targets(captured.header)
    for target, tensor in zip(targets, captured.tensors, strict=True):
        target.copy_(tensor)
    state.finish(captured.header, targets)
    assert text(receiver.kept) == text(CONSTANTS[kind]())


def test_a_sparse_buffer_that_a_joiner_made_otherwise_is_refused() -> None:
    captured = TrainingState([Net(torch.eye(3).to_sparse())]).capture()
    other = TrainingState([Net((2 * torch.eye(3)).to_sparse())])
    with pytest.raises(StateMismatch, match="buffer kept, .*does not travel"):
        other.targets(captured.header)


def test_what_a_joiner_gets_from_its_peer_is_not_taken_for_a_change_by_a_forward_pass() -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, 4, 4)
        model = nn.Linear(3, 1)
        model.register_buffer("kept", torch.tensor([1, 2], dtype=torch.uint64))
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

        def take_state() -> bool:
            model.kept.copy_(torch.tensor([3, 4], dtype=torch.uint64))
            return True

        job._engine._resizer.take_state = take_state  # type: ignore[method-assign]
        for _ in job.epochs(1):
            for (x,) in job.dataloader(TensorDataset(torch.ones(4, 3))):
                job.backward(model(x).mean())
                optimizer.step()
        return job.step

    assert run_ranks(1, body) == [1]


@pytest.mark.parametrize("changed", [False, True])
def test_a_buffer_that_is_no_number_counts_as_changed_only_where_it_was(changed: bool) -> None:
    model, weight = nn.Module(), nn.Parameter(torch.ones(2))
    model.register_buffer("mask", torch.tensor([float("nan"), 1.0]))
    mask = model.get_buffer("mask")
    buffers = ModelBuffers()
    buffers.add([model])
    loss = (mask * weight).sum()
    with buffers.announced():
        mask.data[1] += changed
    if changed:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()
