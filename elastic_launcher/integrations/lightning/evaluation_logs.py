"""What a validation or test logs: where one rank has logged a value, all of them have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from elastic_launcher.integrations.lightning.step_logs import Call, ComparedResults

BATCH = ("validation_step", "test_step", "on_validation_batch", "on_test_batch")  # what runs for a batch
OWN = ("sync_dist_fn", "sync_dist_group", "batch_size")  # arguments that are this process's own


class EvaluationResults(ComparedResults):
    """Lightning's collection of what an evaluation logs.

    Args:
        alike: As in `ComparedResults`.
    """

    def __init__(self, alike: Callable[[str, str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(False, alike)
        self._calls: dict[str, Call] = {}  # by Lightning's keys

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:
        """Takes a value that the module logs.

        Raises:
            ValueError: If it is logged for a batch with ``rank_zero_only``.
        """
        if fx.startswith(BATCH) and named.get("rank_zero_only"):
            raise ValueError(
                f"self.log({name!r}, rank_zero_only=True) in {fx}: each rank has a part of the batches there; leave "
                "rank_zero_only out, and the value of all batches is logged, once"
            )
        super().log(fx, name, value, **named)
        self._calls[self._key(fx, name, named)] = Call(
            (fx, name), {one: given for one, given in named.items() if one not in OWN}, ""
        )

    def _key(self, fx: str, name: str, named: dict[str, Any]) -> str:
        several = self.dataloader_idx is not None and named.get("add_dataloader_idx", True)
        return f"{fx}.{name}.{self.dataloader_idx}" if several else f"{fx}.{name}"

    def of_loader(self, number: int | None) -> dict[str, Any]:
        """Returns what was logged for the batches of a loader since the last reset, metrics too.

        Args:
            number: Its place among several loaders; None for a single one.
        """
        return {
            key: one
            for key, one in self.items()
            if not one.has_reset and one.meta.dataloader_idx == number and one.meta.fx.startswith(BATCH)
        }

    def calls(self, number: int | None) -> list[Call]:
        """Returns how those values were logged, for `log_also`."""
        return [self._calls[key] for key in self.of_loader(number)]

    def log_also(self, calls: list[Call], module: nn.Module, reduce: Callable[..., Any]) -> None:
        """Logs what another rank has logged and this one has not, with nothing in it yet.

        Args:
            calls: What `calls` has returned there.
            module: The module, whose metrics are logged.
            reduce: The strategy's.
        """
        for call in calls:
            key = self._key(*call.arguments, call.named)
            if key in self and not self[key].has_reset:
                continue
            attribute = call.named.get("metric_attribute")
            value: Any = module.get_submodule(attribute) if attribute else torch.tensor(0.0)
            self.log(*call.arguments, value, **call.named, sync_dist_fn=reduce, batch_size=1)
            if not attribute:
                clear(self[key])


def clear(one: Any) -> None:
    """Leaves nothing in a value that was logged, which counts as logged still."""
    one.reset()
    one.has_reset = False
