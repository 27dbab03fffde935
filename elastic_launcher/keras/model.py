"""Makes a Keras model elastic."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from elastic_launcher.keras.evaluate import evaluate
from elastic_launcher.keras.files import write_on_rank_0
from elastic_launcher.keras.fit import fit
from elastic_launcher.keras.job import current


def Model(model: Any) -> Any:  # noqa: N802 - the name that users of Run:AI's library know
    """Makes a model elastic: `fit` and `evaluate` use all ranks, and files are written by rank 0 alone.

    The model stays what it is: only these methods of this instance change, and `train_on_batch`, which is refused.

    Args:
        model: Any `keras.Model`, before or after `compile`.

    Returns:
        The same model.
    """
    current()
    for name, method in (("fit", fit), ("evaluate", evaluate), ("train_on_batch", _refuse)):
        object.__setattr__(model, name, functools.partial(method, model))
    write_on_rank_0(model)
    return model


def _refuse(model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        f"train_on_batch would train {model.name} on each rank by itself, and the weights would come apart: call fit, "
        "which trains on the global batch"
    )
