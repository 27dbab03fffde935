"""What the loss of a micro-batch was divided by, so that micro-batches add up to the loss of the global batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from elastic_launcher.keras.backend import keras

MEANS = ("sum_over_batch_size", "mean")
WEIGHTED = "mean_with_sample_weight"
reducing: Any = sys.modules[keras.losses.Loss.__module__]
REDUCE = reducing.reduce_weighted_values
"""Keras' own. It alone gets all masks: a loss may have one beside that of the outputs, as with ``ignore_class``."""
DIFFER = (
    "is a mean over valid steps or over sample weights: their denominators differ, so that micro-batches don't add up "
    "to the global batch. Add the losses up in one output, or pad without a mask"
)


def refuse_sums(model: Any) -> None:
    """Refuses losses of a compiled model that are no means.

    Raises:
        ValueError: For one.
    """
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", MEANS[0]) if isinstance(loss, keras.losses.Loss) else MEANS[0]
        if loss is not None and reduction not in (*MEANS, WEIGHTED):
            raise ValueError(
                f"the loss {getattr(loss, 'name', loss)!r} has reduction={reduction!r}; an elastic job needs a mean, "
                f"which does not depend on how the global batch is divided: use reduction={MEANS[0]!r}, and multiply "
                "the learning rate by the global batch"
            )


class Denominator:
    """Notes for each micro-batch what its loss was divided by.

    Attributes:
        value: The number of valid steps, or the sum of sample weights, of the last micro-batch; None for its samples.
    """

    def __init__(self, model: Any) -> None:
        refuse_sums(model)
        self.value: float | None = None
        self._found: list[float | None] = []  # of each loss in turn
        self._model = model
        self._compute: Callable[..., Any] = model.compute_loss

    @classmethod
    def of(cls, model: Any) -> Denominator:
        """Returns the one that the model calls already, in `fit`, or a new one."""
        caller = getattr(model.compute_loss, "__self__", None)
        return caller if isinstance(caller, cls) else cls(model)

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """Computes the loss as the model does, and notes what it was divided by.

        Raises:
            ValueError: If it adds up means with different denominators.
        """
        self._found.clear()
        loss = self._compute(*arguments, **named)
        self.value = self._found[0] if self._found else None
        if all(one is None for one in self._found):
            return loss
        if len(self._found) > 1:
            raise ValueError(f"the model has several losses, and one of them {DIFFER}")
        if any(layer._losses for layer in self._model._flatten_layers()):
            raise ValueError(f"layers add losses to the model's (add_loss, activity_regularizer), which {DIFFER}")
        return loss

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Has the model call `compute_loss` of this, and Keras reduce losses by this."""
        outer = reducing.reduce_weighted_values
        with replaced(self._model, "compute_loss", self.compute_loss):
            reducing.reduce_weighted_values = self._reduce
            try:
                yield
            finally:
                reducing.reduce_weighted_values = outer

    def _reduce(self, values: Any, sample_weight: Any = None, mask: Any = None, **options: Any) -> Any:
        if sample_weight is not None and mask is not None:
            sample_weight = keras.ops.convert_to_tensor(sample_weight) * 1  # Keras writes into it; metrics read it too
        self._found.append(_denominator(values, sample_weight, mask, options.get("reduction", MEANS[0])))
        return REDUCE(values, sample_weight=sample_weight, mask=mask, **options)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an object of Keras another attribute, of which Keras does not keep track."""
    outer = vars(owner).get(name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if outer is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, outer)


def _denominator(values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> float | None:
    """Returns what a loss divides by; None for a number of values that is in proportion to its samples."""
    weights = sample_weight if reduction == WEIGHTED else None
    if len(values.shape) == 0 or (weights is None and mask is None):
        return None
    if weights is None:
        return float(keras.ops.sum(keras.ops.cast(mask, "float32")))
    weights = keras.ops.convert_to_tensor(weights)
    weights = reducing.apply_mask(weights if mask is None else weights * 1, mask, weights.dtype, reduction)
    return float(keras.ops.sum(weights))
