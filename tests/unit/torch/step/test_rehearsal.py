"""What a loop body writes into parameters without an optimizer is put back after its rehearsal, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from elastic_launcher.torch.step import rehearsal
from elastic_launcher.torch.step.rehearsal import KEPT_ELEMENTS, WrittenParameters

LARGE, SMALL = torch.arange(8.0), torch.arange(3.0)


def rehearsed(write: Callable[[nn.Parameter, torch.Tensor], None], size: int = 4) -> nn.Parameter:
    """Returns a parameter after a rehearsal with a large batch and a small one."""
    parameter = nn.Parameter(torch.linspace(1.0, 2.0, size))
    written = WrittenParameters([parameter])
    for batch in (LARGE, SMALL):
        write(parameter, batch)
        written.end_try(counts=True)
    written.refuse_different(lambda _: "norm.bias")
    return parameter


class Once:
    """Initialises a parameter by the first batch, as ActNorm does."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, parameter: nn.Parameter, batch: torch.Tensor) -> None:
        if not self.done:
            parameter.data.copy_(batch.mean().expand_as(parameter))
        self.done = True


def by_each_batch(parameter: nn.Parameter, batch: torch.Tensor) -> None:
    parameter.data[int(batch[-1]) % 4] = 0.0


def average(parameter: nn.Parameter, batch: torch.Tensor) -> None:
    parameter.data.mul_(0.999).add_(batch.mean(), alpha=0.001)


def normalize(parameter: nn.Parameter, batch: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.div_(parameter.norm())


def replace_memory(parameter: nn.Parameter, batch: torch.Tensor) -> None:
    parameter.data = parameter.data / parameter.data.norm()


@pytest.mark.parametrize(
    "write", [Once(), by_each_batch, average], ids=["by the first batch", "by each batch", "a slow average"]
)
def test_what_follows_the_batch_is_refused_by_name(write: Callable[[nn.Parameter, torch.Tensor], None]) -> None:
    with pytest.raises(RuntimeError, match=r"changes norm\.bias without an optimizer.*before job\.prepare"):
        rehearsed(write)


@pytest.mark.parametrize("write", [normalize, replace_memory])
def test_what_does_the_same_with_each_batch_is_put_back(write: Callable[[nn.Parameter, torch.Tensor], None]) -> None:
    torch.testing.assert_close(rehearsed(write).data, torch.linspace(1.0, 2.0, 4), rtol=0, atol=0)


def test_a_large_parameter_is_left_as_it_is() -> None:
    assert rehearsed(Once(), KEPT_ELEMENTS + 1)[0] == LARGE.mean()


def test_no_more_parameters_are_copied_than_memory_is_set_apart_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "KEPT_TOGETHER", 10)
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(3)]
    written = WrittenParameters(parameters)
    for parameter in parameters:
        parameter.data.zero_()
    written.end_try(counts=True)
    assert [float(parameter.sum()) for parameter in parameters] == [4.0, 4.0, 0.0]


def test_numbers_of_each_kind_are_compared() -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.complex64):
        parameter = nn.Parameter(torch.tensor([1.0, float("nan")], dtype=dtype))
        written = WrittenParameters([parameter])
        for factor in (2.0, 2.0, 3.0):
            parameter.data.mul_(factor)
            written.end_try(counts=True)
            assert parameter.data[0] == 1.0
        with pytest.raises(RuntimeError, match="changes norm"):
            written.refuse_different(lambda _: "norm")


def test_a_try_that_was_too_large_for_memory_does_not_count() -> None:
    parameter = nn.Parameter(torch.ones(4))
    written = WrittenParameters([parameter])
    parameter.data.zero_()
    written.end_try(counts=False)
    written.end_try(counts=True)
    written.refuse_different(lambda _: "norm.bias")
    assert parameter.data.eq(1).all()
