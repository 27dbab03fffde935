"""What ranks log in a step is brought together, and refused where they log different values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elastic_launcher.integrations.lightning.step_logs import Call, StepLogs


class Rank:
    """The part of a job that logs ask: a rank in its first step."""

    device, step, samples, global_batch_size = torch.device("cpu"), 0, 2, 5
    micro = SimpleNamespace(first=True)

    def track(self, tensors: Any, op: str) -> None:
        """Does nothing: the test adds up what ranks have logged."""


def logged(*names: str, kind: str = "mean", value: float = 1.0) -> StepLogs:
    """Returns the logs of a rank that has logged values under some names."""
    logs = StepLogs(Rank(), tracked=True)  # type: ignore[arg-type]
    logs.begin_micro_batch()
    for name in names:
        logs.add(f"training_step.{name}", Call(("training_step", name), {}, kind), torch.tensor(value), None)
    return logs


def reduced(logs: StepLogs, *others: StepLogs) -> StepLogs:
    """Gives a rank what all have logged."""
    for other in others:
        logs._sums += other._sums
        torch.maximum(logs._largest, other._largest, out=logs._largest)
    return logs


@pytest.mark.parametrize(("kind", "expected"), [("mean", 2.0), ("sum", 4.0), ("max", 3.0), ("min", 1.0)])
def test_values_of_two_ranks(kind: str, expected: float) -> None:
    ((call, value, weight),) = reduced(logged("loss", kind=kind), logged("loss", kind=kind, value=3.0)).take()
    assert (call.arguments[1], float(value), weight) == ("loss", expected, 4.0)


@pytest.mark.parametrize(
    ("mine", "others"), [(["a"], ["b"]), (["a"], ["a", "b"]), ([], ["a"]), (["a", "b"], ["b", "a"])], ids=str
)
def test_ranks_that_log_different_values(mine: list[str], others: list[str]) -> None:
    with pytest.raises(RuntimeError, match="something else on others"):
        reduced(logged(*mine), logged(*others)).take()


def test_nothing_is_logged_of_micro_batches_that_were_left_out() -> None:
    logs = logged("loss")
    logs.before_step()
    logs.begin_micro_batch()
    logs.add("training_step.loss", Call(("training_step", "loss"), {}, "mean"), torch.tensor(1.0), None)
    logs._sums.zero_()  # as job.track does
    assert logs.take() == []
