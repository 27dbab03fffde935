"""What the loss of a micro-batch was divided by, so that micro-batches add up to the loss of the global batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from elastic_launcher.keras.backend import keras

MEANS = ("sum_over_batch_size", "mean")
WEIGHTED = "mean_with_sample_weight"


def reductions(model: Any) -> list[str]:
    """Returns how each loss of a compiled model is reduced.

    Raises:
        ValueError: For one that is no mean.
    """
    found = []
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", MEANS[0]) if isinstance(loss, keras.losses.Loss) else MEANS[0]
        if loss is not None and reduction not in (*MEANS, WEIGHTED):
            raise ValueError(
                f"the loss {getattr(loss, 'name', loss)!r} has reduction={reduction!r}; an elastic job needs a mean, "
                f"which does not depend on how the global batch is divided: use reduction={MEANS[0]!r}, and multiply "
                "the learning rate by the global batch"
            )
        found.append(reduction)
    return found


class Denominator:
    """Notes for each micro-batch what its loss was divided by.

    Attributes:
        value: The number of valid steps, or the sum of sample weights, of the last micro-batch; None for its samples.
    """

    def __init__(self, model: Any) -> None:
        self.value: float | None = None
        self._model = model
        self._reductions = reductions(model)
        self._compute: Callable[..., Any] = model.compute_loss
        self._signature = inspect.signature(self._compute)

    @classmethod
    def of(cls, model: Any) -> Denominator:
        """Returns the one that the model calls already, in `fit`, or a new one."""
        caller = getattr(model.compute_loss, "__self__", None)
        return caller if isinstance(caller, cls) else cls(model)

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """Computes the loss as the model does, and notes what it was divided by."""
        given = self._signature.bind(*arguments, **named).arguments
        self.value = self._of(given.get("y_pred"), given.get("sample_weight"))
        return self._compute(*arguments, **named)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Has the model call `compute_loss` of this, in the place of its own or of another one."""
        outer = vars(self._model).get("compute_loss")
        object.__setattr__(self._model, "compute_loss", self.compute_loss)
        try:
            yield
        finally:
            if outer is None:
                object.__delattr__(self._model, "compute_loss")
            else:
                object.__setattr__(self._model, "compute_loss", outer)

    def _of(self, y_pred: Any, sample_weight: Any) -> float | None:
        outputs = keras.tree.flatten(y_pred)
        masks = [getattr(output, "_keras_mask", None) for output in outputs]
        weighted = WEIGHTED in self._reductions and sample_weight is not None
        if not weighted and all(mask is None for mask in masks):
            return None
        if len(outputs) > 1:
            raise ValueError(
                "the model has several outputs, and the loss of one of them is a mean over valid steps or over sample "
                "weights: their denominators differ, so that micro-batches don't add up to the global batch. Add the "
                "losses up in one output, or pad without a mask"
            )
        mask = masks[0]
        if not weighted:
            return float(keras.ops.sum(keras.ops.cast(mask, "float32")))
        weights = keras.ops.convert_to_tensor(sample_weight)
        if mask is not None:
            mask = keras.ops.cast(mask, weights.dtype)
            weights = mask * (weights if len(weights.shape) == len(mask.shape) else keras.ops.expand_dims(weights, -1))
        return float(keras.ops.sum(weights))
