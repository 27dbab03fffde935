"""`fit` and `evaluate` over all ranks of a job.

To Keras, one batch is one optimizer step of the job. Its own `train_step` runs for each micro-batch of this rank, with
two hooks: the job takes its loss, and steps the optimizer once the gradient of the global batch is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch

from elastic_launcher.keras import data as data_of
from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.callbacks import CallbackState, OnMain, check
from elastic_launcher.keras.files import write_on_rank_0
from elastic_launcher.keras.hooks import Hooks
from elastic_launcher.keras.job import current
from elastic_launcher.keras.metrics import Metrics
from elastic_launcher.keras.variables import ModelVariables, OptimizerInShape, Seeds, learning_rate
from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import Data

_numbers: Iterator[int] = count()  # of calls of fit, and of optimizers: the same on all ranks
_prepared: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()  # by model


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Sequence[Any] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
) -> Any:
    """Trains a compiled model, as `keras.Model.fit` does, over all ranks.

    Args:
        model: The model.
        x: Arrays or tensors (also in lists, tuples and dicts), a torch DataLoader, or a PyDataset.
        y: Targets.
        batch_size: The global batch, or None for it.
        epochs: The epoch after the last one.
        verbose: 0, 1 (a bar) or 2 (a line for each epoch), on rank 0; "auto" is 2.
        callbacks: They run on every rank, with the metrics of all ranks; see `elastic_launcher.keras.on_main`.
        validation_split: The share of the last samples that are for validation.
        validation_data: ``(x, y)``, ``(x, y, sample_weight)``, or a DataLoader; the ranks share it.
        shuffle: Whether each epoch has an order of its own; a DataLoader has its own.
        class_weight: The weight of each class.
        sample_weight: The weight of each sample.
        initial_epoch: The number of the first epoch.
        steps_per_epoch: Must be None: an epoch is one pass over the data.
        validation_steps: Must be None.
        validation_batch_size: Is not used: ranks validate with micro-batches.
        validation_freq: As in Keras.

    Returns:
        The History callback.

    Raises:
        ValueError: For options that an elastic job can't follow; the message names them.
        TypeError: For data that can only be read forward, and callbacks that do what the job does.
    """
    job = current()
    write_on_rank_0(model)
    _check(model, job, batch_size, steps_per_epoch, validation_steps)
    parts, held_out = (x, y, sample_weight), validation_data
    if validation_split and validation_data is None:
        parts, held_out = data_of.split(parts, validation_split)
    data = data_of.read(*parts, class_weight, shuffle, job.global_batch_size)
    validation = _held_out(held_out, job)
    loader = job.dataloader(data.dataset, shuffle=data.shuffle, **data.options)
    _build(model, data)
    shared = None if validation is None else _loader(job, validation)
    training = Training(model, job, loader, shared, validation_freq, initial_epoch)
    return training.run(check(callbacks or ()), epochs, 2 if verbose == "auto" else verbose)


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Sequence[Any] | None = None,
    return_dict: bool = False,
) -> Any:
    """Returns a compiled model's loss and metrics over data that the ranks share, as `keras.Model.evaluate` does.

    ``batch_size`` and ``verbose`` are not used: ranks evaluate with micro-batches, and print nothing.

    Raises:
        ValueError: For ``steps``.
        TypeError: For data that can only be read forward.
    """
    job = current()
    if steps is not None:
        raise ValueError("evaluate takes no steps=: the ranks share all of the data; leave it out")
    data = data_of.read(x, y, sample_weight, None, False, job.global_batch_size)
    _build(model, data)
    listening = keras.callbacks.CallbackList(check(callbacks or ()), model=model)
    listening.on_test_begin()
    logs = _evaluated(model, job, _loader(job, data))
    listening.on_test_end(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def _check(model: Any, job: Job, batch_size: int | None, steps_per_epoch: Any, validation_steps: Any) -> None:
    model._assert_compile_called("fit")
    if batch_size not in (None, job.global_batch_size):
        raise ValueError(
            f"batch_size is {batch_size}, and the job's global batch {job.global_batch_size}: leave batch_size out, or "
            "change global_batch_size of init"
        )
    for name, value in (("steps_per_epoch", steps_per_epoch), ("validation_steps", validation_steps)):
        if value is not None:
            raise ValueError(f"fit takes no {name}=: an epoch is one pass over the data; leave it out")
    if model.optimizer is None:
        raise ValueError("the model has no optimizer: give one to compile")
    if model.optimizer.gradient_accumulation_steps:
        raise ValueError(
            "the optimizer has gradient_accumulation_steps="
            f"{model.optimizer.gradient_accumulation_steps}: the job accumulates by itself, as far as the global batch "
            "needs it; leave it out, and make global_batch_size of init so many times larger"
        )


def _held_out(held_out: Any, job: Job) -> Data | None:
    if held_out is None:
        return None
    x, y, weights = (*data_of.parts_of(held_out), None, None)[:3]
    return data_of.read(x, y, weights, None, False, job.global_batch_size)


def _loader(job: Job, data: Data) -> Any:
    return job.dataloader(data.dataset, **{**data.options, "drop_last": False})


def _build(model: Any, data: Data) -> None:
    """Makes all variables of a model and of its metrics."""
    collate = data.options.get("collate_fn") or torch.utils.data.default_collate
    indices = range(min(2, len(data.dataset)))  # type: ignore[arg-type]
    batch = collate([data.dataset[index] for index in indices])
    model._symbolic_build(data_batch=keras.utils.unpack_x_y_sample_weight(data_of.parts_of(batch)))


def _evaluated(model: Any, job: Job, loader: Any) -> dict[str, float]:
    """Returns the loss and metrics over a loader's data."""

    def sums(*batch: Any) -> dict[str, Any]:
        model.reset_metrics()
        model.test_step(batch)
        return {str(n): variable.value.detach().clone() for n, variable in enumerate(model.metrics_variables)}

    training, before = model.training, [variable.value.detach().clone() for variable in model.metrics_variables]
    model.eval()
    found = job.evaluate(sums, loader)
    model.train(training)
    for number, variable in enumerate(model.metrics_variables):
        variable.assign(found[str(number)])
    logs = _plain(model.get_metrics_result())
    for variable, value in zip(model.metrics_variables, before, strict=True):
        variable.assign(value)
    return logs


def _plain(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in logs.items()}


class Training:
    """One call of `fit`."""

    def __init__(
        self, model: Any, job: Job, loader: Any, validation: Any, validation_freq: int | Sequence[int], first: int
    ) -> None:
        self._model = model
        self._job = job
        self._loader = loader
        self._validation = validation
        self._validation_freq = validation_freq
        self._first = first  # epoch
        self._seeds = Seeds(model)
        self._prepared = prepared(model, job)
        self._metrics = Metrics(model, job, self._prepared.tracked)
        self._hooks = Hooks(model)
        self._name = f"keras.fit{next(_numbers)}"
        job.register(f"{self._name}.loss", self._metrics)
        self._callbacks: Any = None
        self._begun = -1  # the last step that callbacks know of
        job.register(f"{self._name}.begun", self)

    def state_dict(self) -> dict[str, int]:
        """Returns which step callbacks know of."""
        return {"begun": self._begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Takes what `state_dict` has returned."""
        self._begun = state["begun"]

    def run(self, callbacks: list[Any], epochs: int, verbose: str | int) -> Any:
        """Trains up to an epoch; returns the history."""
        model, job = self._model, self._job
        printing = [OnMain(keras.callbacks.ProgbarLogger())] if verbose else []
        self._callbacks = listening = keras.callbacks.CallbackList(
            [*callbacks, *printing],
            add_history=True,
            model=model,
            epochs=epochs,
            steps=self._loader.steps_per_epoch,
            verbose=verbose,
        )
        for number, callback in enumerate(listening.callbacks):
            if isinstance(callback, OnMain):
                callback.first_epoch = self._first
            else:
                job.register(f"{self._name}.callback{number}", CallbackState(callback))
        model.stop_training = False
        logs: dict[str, Any] = {}
        listening.on_train_begin()
        with self._hooks:
            model.make_train_function()
            for _ in job.epochs(max(0, epochs - self._first)):
                self._train()
                if job.over:
                    break
                if job.rank is None:
                    continue  # the others have done this epoch
                epoch = job.epoch + self._first
                logs = _plain(model.get_metrics_result())
                if self._validation is not None and model._should_eval(epoch, self._validation_freq):
                    listening.on_test_begin()
                    found = _evaluated(model, job, self._validation)
                    listening.on_test_end(found)
                    logs |= {f"val_{name}": value for name, value in found.items()}
                listening.on_epoch_end(epoch, logs)
                if model.stop_training:
                    break
        model.optimizer.finalize_variable_values(model.trainable_variables)
        listening.on_train_end(logs)
        return model.history

    def _train(self) -> None:
        """Does what is left of an epoch's steps."""
        job, model, steps = self._job, self._model, self._loader.steps_per_epoch
        model.train()
        self._metrics.begin_epoch()
        if job.rank is not None:
            self._begin_step()
        while job.run_step(self._loader, self._micro_batch):
            self._prepared.optimizer.step()
            if job.step_in_epoch == steps:
                job.reduce(0.0)  # nobody goes on to the next epoch while another one may have to take this step over
            self._metrics.end_step()
            self._callbacks.on_train_batch_end(job.step_in_epoch - 1, model.get_metrics_result())
            if model.stop_training:
                break
            if job.step_in_epoch < steps:
                self._begin_step()

    def _begin_step(self) -> None:
        """Tells callbacks that a step begins, between two steps: a process that joins receives what they change."""
        job = self._job
        if self._begun == job.step:
            return
        self._begun = job.step
        if job.step_in_epoch == 0:
            self._callbacks.on_epoch_begin(job.epoch + self._first)
        self._callbacks.on_train_batch_begin(job.step_in_epoch)

    def _micro_batch(self, batch: Any) -> None:
        job, micro = self._job, self._job.micro
        assert micro is not None
        if micro.first:
            self._seeds.begin(job.step, job.rank or 0)
            if not micro.rehearsal:
                self._begin_step()  # if this process joins here, its peers' state replaces what comes of it
        self._model.train_function([data_of.parts_of(batch)])
        loss, denominator = self._hooks.take()
        job.backward(loss, weight=denominator)


@dataclass
class Prepared:
    """What the job knows of a model.

    Attributes:
        job: The job.
        of: The model's optimizer.
        optimizer: The same in torch's shape.
        tracked: Ids of the metric variables that the job tracks.
    """

    job: Job
    of: Any
    optimizer: OptimizerInShape
    tracked: set[int]


def prepared(model: Any, job: Job) -> Prepared:
    """Prepares a model and its optimizer for the job, once."""
    known = _prepared.get(model)
    if known is not None and known.job is not job:
        known = None
    if known is not None and known.of is model.optimizer:
        return known
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if known is None:
        job.prepare(ModelVariables(model))
    in_shape = OptimizerInShape(model.optimizer, model.trainable_variables)
    job.prepare(in_shape)
    number = next(_numbers)
    job.register(f"keras.optimizer{number}", in_shape.slots)
    job.register(f"keras.rate{number}", learning_rate(model.optimizer))  # on its own: not taken over with a step
    _prepared[model] = found = Prepared(job, model.optimizer, in_shape, known.tracked if known is not None else set())
    return found
