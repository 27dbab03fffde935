"""`evaluate` and `predict` over all ranks of a job: each sample once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from elastic_launcher.keras import data as data_of
from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.callbacks import check
from elastic_launcher.keras.denominators import Denominator
from elastic_launcher.keras.job import current
from elastic_launcher.keras.metrics import refusing_means_of_batches
from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import Data


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Returns a compiled model's loss and metrics over data that the ranks share, as `keras.Model.evaluate` does.

    ``batch_size`` and ``verbose`` are not used: ranks evaluate with micro-batches, and print nothing.

    Raises:
        ValueError: For ``steps``, and a loss that depends on how the data are divided.
        TypeError: For data that can only be read forward.
    """
    job = current()
    if steps is not None:
        raise ValueError("evaluate takes no steps=: the ranks share all of the data; leave it out")
    data = data_of.read(x, y, sample_weight, None, False, job.global_batch_size)
    build(model, data)
    listening = keras.callbacks.CallbackList(check(callbacks), model=model)
    listening.on_test_begin()
    logs = evaluated(model, job, loader_over(job, data), is_bare(x, data))
    listening.on_test_end(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def predict(model: Any, x: Any) -> Any:
    """Returns a model's outputs for data that the ranks share, as `keras.Model.predict` does; every rank must call it.

    Args:
        model: The model.
        x: Arrays or tensors (also in lists, tuples and dicts), a torch DataLoader, or a PyDataset.

    Returns:
        NumPy arrays with a row for each sample, the same on all ranks.

    Raises:
        TypeError: For data that can only be read forward.
        RuntimeError: Before this rank is admitted.
    """
    job = current()
    data = data_of.read(x, None, None, None, False, job.global_batch_size)
    bare = is_bare(x, data)
    with _evaluating(model), torch.no_grad():
        structure = model.predict_step(as_given(_first_samples(data), bare))

        def rows(*batch: Any) -> dict[str, torch.Tensor]:
            outputs = keras.tree.flatten(model.predict_step(as_given(batch, bare)))
            return {str(number): output for number, output in enumerate(outputs)}

        found: Any = job.gather(rows, loader_over(job, data))
    arrays = [found[str(number)].numpy() for number in range(len(keras.tree.flatten(structure)))]
    return keras.tree.pack_sequence_as(structure, arrays)


def loader_over(job: Job, data: Data) -> Any:
    """Returns a loader over all samples, in their order."""
    return job.dataloader(data.dataset, **{**data.options, "drop_last": False})


def build(model: Any, data: Data) -> None:
    """Makes all variables of a model and of its metrics.

    Raises:
        ValueError: If a layer carries states from one batch to the next.
    """
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            raise ValueError(
                f"the layer {layer.name!r} is stateful: it goes on where the sample in the same place of the batch "
                "before has ended, and ranks divide each batch anew. Pass stateful=False, and sequences that are whole"
            )
    model._symbolic_build(data_batch=keras.utils.unpack_x_y_sample_weight(_first_samples(data)))


def is_bare(x: Any, data: Data) -> bool:
    """Whether Keras gives a model's own steps each batch of x by itself, in no tuple.

    Args:
        x: As `fit` has got it.
        data: The same as data.
    """
    if isinstance(x, DataLoader):
        return not isinstance(_first_batch(data), (tuple, list))
    parts = _first_samples(data)
    if isinstance(x, keras.utils.PyDataset):
        return len(parts) == 1 and isinstance(parts[0], dict)
    return len(parts) == 1 and not isinstance(x, (tuple, list))


def as_given(parts: tuple[Any, ...], bare: bool) -> Any:
    """Returns a batch as Keras gives it to a model's own steps."""
    return parts[0] if bare else parts


def _first_samples(data: Data) -> tuple[Any, ...]:
    return data_of.parts_of(_first_batch(data))


def _first_batch(data: Data) -> Any:
    collate = data.options.get("collate_fn") or torch.utils.data.default_collate
    indices = range(min(2, len(data.dataset)))  # type: ignore[arg-type]
    return collate([data.dataset[index] for index in indices])


def evaluated(model: Any, job: Job, loader: Any, bare: bool) -> dict[str, float]:
    """Returns the loss and metrics over a loader's data; see `is_bare`."""
    tracker, denominator = model._loss_tracker, Denominator.of(model)
    returned: list[Any] = []  # by the last call of test_step

    def sums(*batch: Any) -> dict[str, Any]:
        model.reset_metrics()
        with refusing_means_of_batches():
            returned[:] = [model.test_step(as_given(batch, bare))]
        if denominator.value is not None:  # the loss is a mean over these, not over samples
            tracker.total.assign(tracker.result() * denominator.value)
            tracker.count.assign(denominator.value)
        return {str(n): variable.value.detach().clone() for n, variable in enumerate(model.metrics_variables)}

    before = [variable.value.detach().clone() for variable in model.metrics_variables]
    with _evaluating(model), denominator.noting():
        found = job.evaluate(sums, loader)
    for number, variable in enumerate(model.metrics_variables):
        value = torch.as_tensor(found[str(number)], dtype=variable.value.dtype)
        variable.assign(value.reshape(tuple(variable.shape)))  # an array of one entry comes as a number
    logs = plain(model.get_metrics_result())
    for one in returned:
        warn_of_other_logs("test_step", one, logs)
    for variable, value in zip(model.metrics_variables, before, strict=True):
        variable.assign(value)
    return logs


def warn_of_other_logs(step: str, logs: Any, metrics: Mapping[str, Any]) -> None:
    """Warns of logs of a model's own step that are left out: only metrics are known over all ranks."""
    others = [name for name in logs if name not in metrics] if isinstance(logs, Mapping) else []
    if others:
        there, known = ", ".join(map(repr, others)), ", ".join(map(repr, metrics))
        warnings.warn(
            f"{step} returns {there}, which is no metric of the model: {known} are logged in an elastic job, with the "
            "samples of all ranks. Give a metric that name, and let callbacks monitor metrics",
            stacklevel=2,
        )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def plain(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs by their names, as Keras has them, with numbers in the place of single ones in arrays."""
    return {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in sorted(logs.items())}
