"""Callbacks that report to TensorBoard, Weights & Biases, MLflow and others: from rank 0 alone, whoever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

REPORTS = tuple(INTEGRATION_TO_CALLBACK.values())


def report_from_rank_0(callbacks: list[Any]) -> None:
    """Has those of transformers' own callbacks that report do so on rank 0 alone."""
    callbacks[:] = [OnRank0(one) if isinstance(one, REPORTS) else one for one in callbacks]


class OnRank0(TrainerCallback):  # type: ignore[misc] # transformers is not followed
    """Calls a callback on rank 0 alone: where another process becomes it, beginning with `on_train_begin`."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._begun = False

    def _call(self, event: str, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if not state.is_world_process_zero:
            return None
        if not self._begun and event != "on_train_begin":
            self._callback.on_train_begin(args, state, control, **more)
        self._begun = True
        return getattr(self._callback, event)(args, state, control, **more)


def _forward(event: str) -> Callable[..., Any]:
    def call(self: OnRank0, args: Any, state: Any, control: Any, **more: Any) -> Any:
        return self._call(event, args, state, control, **more)

    return call


for _event in dir(TrainerCallback):
    if _event.startswith("on_"):
        setattr(OnRank0, _event, _forward(_event))
