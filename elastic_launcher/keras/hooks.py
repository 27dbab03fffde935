"""The two hooks by which a model's own `train_step` works for a job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from elastic_launcher.keras.denominators import Denominator, replaced


class Hooks:
    """Keeps the loss of a model's own `train_step`, whose optimizer does not act: the job does both."""

    def __init__(self, model: Any) -> None:
        optimizer = model.optimizer
        scale: Callable[[Any], Any] = optimizer.scale_loss
        self._denominator = Denominator(model)
        self._loss: Any = None

        def scale_loss(loss: Any) -> Any:
            scaled = scale(loss)
            if scaled is not loss:
                scaled.elastic_unscaled = loss
            given = scaled.view_as(scaled)
            given.backward = lambda **_: self._keep(scaled)
            return given

        def apply(gradients: Any, variables: Any = None) -> None:
            pass

        self._set = {"scale_loss": scale_loss, "apply": apply}
        self._optimizer = optimizer
        self._left = ExitStack()

    def _keep(self, loss: Any) -> None:
        if self._loss is not None:
            raise RuntimeError("train_step has called backward twice: add its losses up, and call it once")
        self._loss = loss

    def take(self) -> tuple[Any, float | None]:
        """Returns the loss of the last `train_step`, and what it was divided by.

        Raises:
            RuntimeError: If that has called no ``backward`` of what `scale_loss` returned.
        """
        loss, self._loss = self._loss, None
        denominator, self._denominator.value = self._denominator.value, None
        if loss is None:
            raise RuntimeError(
                "train_step has not called self.optimizer.scale_loss(loss).backward(), which gives the job its loss; "
                "call it as Keras' own train_step does, and self.optimizer.apply after it"
            )
        return loss, denominator

    def __enter__(self) -> None:
        self._left.enter_context(self._denominator.noting())
        for name, method in self._set.items():
            self._left.enter_context(replaced(self._optimizer, name, method))

    def __exit__(self, *error: object) -> None:
        self._left.close()
