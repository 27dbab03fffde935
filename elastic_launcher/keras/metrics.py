"""The metrics of `fit`: sums over all ranks' samples, which come with the gradient."""

from __future__ import annotations

from typing import Any

import torch

from elastic_launcher.torch import Job


class Metrics:
    """The metric variables of a compiled model in training: each rank has those of all ranks.

    Args:
        model: The model.
        job: The job.
        known: Ids of variables that the job tracks already; those of this model are added.

    Raises:
        ValueError: For a metric whose variables are no sums.
    """

    def __init__(self, model: Any, job: Job, known: set[int]) -> None:
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
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None
        new = [variable for variable in model.metrics_variables if id(variable) not in known]
        known.update(id(variable) for variable in new)
        if new:
            job.track(lambda: [variable.value for variable in new], op="sum")

    def begin_step(self) -> None:
        """Notes what the mean loss was before an attempt at a step."""
        tracker = self._model._loss_tracker
        self._before = tracker.total.value.detach().clone(), tracker.count.value.detach().clone()

    def end_step(self) -> None:
        """Counts the loss of the whole step: micro-batches may have been divided by numbers of valid steps."""
        tracker = self._model._loss_tracker
        if self._before is None:
            return
        total, count = self._before
        tracker.total.assign(total + self._job.loss * (tracker.count.value.detach() - count))
