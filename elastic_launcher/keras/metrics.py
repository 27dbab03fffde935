"""The metrics of `fit`: sums over all ranks' samples, which come with the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastic_launcher.keras.backend import keras
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
        self._total = self._count = 0.0  # of the loss in this epoch
        self._known = known
        new = [variable for variable in model.metrics_variables if id(variable) not in known]
        known.update(id(variable) for variable in new)
        if new:
            job.track(lambda: [variable.value for variable in new], op="sum")

    def state_dict(self) -> dict[str, float]:
        """Returns the sums of the loss over the steps of this epoch."""
        return {"total": self._total, "count": self._count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Takes sums that `state_dict` has returned."""
        self._total, self._count = state["total"], state["count"]

    def begin_epoch(self) -> None:
        """Begins with no samples."""
        self._model.reset_metrics()
        self._total = self._count = 0.0

    def end_step(self) -> None:
        """Counts the loss of the whole step: the means of its micro-batches may have had other denominators.

        Raises:
            ValueError: If a metric has made variables in the step: ranks have not added them up.
        """
        for metric in self._model.metrics:
            if any(id(variable) not in self._known for variable in metric.variables):
                raise ValueError(
                    f"the metric {metric.name!r} makes its variables with its first samples, too late for ranks to add "
                    "them up. Update it once before fit with outputs and labels of the right shape, and reset it "
                    "(metric.update_state(y, model(x)); metric.reset_state()), or give it to compile(metrics=...)"
                )
        tracker = self._model._loss_tracker
        count = float(tracker.count.value)
        if count != self._count:  # else nothing of the step counted
            self._total += self._job.loss * (count - self._count)
            self._count = count
        tracker.total.assign(self._total)


@contextmanager
def refusing_means_of_batches() -> Iterator[None]:
    """Refuses means of one number for each batch: they would depend on how the global batch is divided.

    Raises:
        ValueError: For one.
    """
    mean, function = keras.metrics.Mean, keras.metrics.MeanMetricWrapper
    update = mean.update_state

    def checked(self: Any, values: Any, sample_weight: Any = None) -> Any:
        if len(getattr(values, "shape", ())) == 0:
            if isinstance(self, function):
                raise ValueError(
                    f"the metric {self.name!r} is a function that returns one number for a batch, and its mean would "
                    "depend on how the global batch is divided: return one for each sample, as in "
                    "keras.ops.mean(..., axis=-1)"
                )
            if sample_weight is None:
                raise ValueError(
                    f"the metric {self.name!r} is a mean of one number for each batch, which depends on how the global "
                    "batch is divided: weight it by the samples, as in update_state(loss, sample_weight=len(x))"
                )
        return update(self, values, sample_weight=sample_weight)

    mean.update_state = checked
    try:
        yield
    finally:
        mean.update_state = update
