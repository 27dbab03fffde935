"""The metrics of `fit`: sums over the ranks' samples, so that each rank has those of all."""

from __future__ import annotations

from typing import Any

import torch

from elastic_launcher.torch import Job


class Metrics:
    """The metric variables of a compiled model in training.

    Each step adds the sums of all ranks to what there was before it. What an attempt has added that does not count is
    taken back.

    Raises:
        ValueError: For a metric whose variables are no sums.
    """

    def __init__(self, model: Any, job: Job) -> None:
        for metric in model.metrics:
            for variable in metric.variables:
                kind = getattr(variable, "aggregation", "sum")
                if kind not in ("sum", "none", None):
                    raise ValueError(
                        f"the metric {metric.name!r} has a variable {variable.name!r} whose aggregation is {kind!r}: "
                        "metrics over several ranks have to be sums; make it with add_variable(..., aggregation='sum')"
                    )
        self._model = model
        self._job = job
        self._before: list[torch.Tensor] = []
        self.take()

    @property
    def _variables(self) -> list[Any]:
        return list(self._model.metrics_variables)

    def state_dict(self) -> dict[str, Any]:
        """Returns the values before the present step, by number."""
        return {str(number): value for number, value in enumerate(self._before)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Assigns values that `state_dict` has returned."""
        for number, variable in enumerate(self._variables):
            variable.assign(state[str(number)])
        self.take()

    def reset(self) -> None:
        """Begins an epoch."""
        self._model.reset_metrics()
        self.take()

    def take(self) -> None:
        """Begins a step: what is there counts."""
        self._before = [variable.value.detach().clone() for variable in self._variables]

    def undo(self) -> None:
        """Takes back what was added since the step began."""
        for variable, before in zip(self._variables, self._before, strict=True):
            variable.assign(before)

    def complete(self, samples: int) -> None:
        """Ends a step of so many samples: adds what the other ranks have added."""
        tracker = self._model._loss_tracker
        own = {
            str(number): variable.value.detach() - before
            for number, (variable, before) in enumerate(zip(self._variables, self._before, strict=True))
            if variable is not tracker.total and variable is not tracker.count
        }
        total = self._job.reduce(own, op="sum") if own and self._job.world_size != 1 else own
        for number, (variable, before) in enumerate(zip(self._variables, self._before, strict=True)):
            if variable is tracker.total:
                variable.assign(before + self._job.loss * samples)
            elif variable is tracker.count:
                variable.assign(before + samples)
            else:
                variable.assign(before + total[str(number)])
        self.take()
