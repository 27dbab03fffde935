"""`fit` over all ranks of a job.

To Keras, one batch is one optimizer step of the job. Its own `train_step` runs for each micro-batch of this rank, with
two hooks: the job takes its loss, and steps the optimizer once the gradient of the global batch is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from elastic_launcher.integrations.jobs import refuse_sharded
from elastic_launcher.keras import data as data_of
from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.callbacks import CallbackState, OnMain, check
from elastic_launcher.keras.evaluate import as_given, build, evaluated, is_bare, loader_over, plain, warn_of_other_logs
from elastic_launcher.keras.files import write_on_rank_0
from elastic_launcher.keras.hooks import Hooks
from elastic_launcher.keras.job import current
from elastic_launcher.keras.metrics import Metrics, refusing_means_of_batches
from elastic_launcher.keras.variables import ModelVariables, OptimizerInShape, Seeds, learning_rates, refusing_writes
from elastic_launcher.torch import Job

CALLBACK = "callback"
_numbers: Iterator[int] = count()  # of optimizers: the same on all ranks
_prepared: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()  # by model
_carried: list[Carried] = []  # of the present job


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
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
        TypeError: For data that can only be read forward, callbacks that do what the job does, and sharded models.
    """
    job = current()
    write_on_rank_0(model)
    _check(model, job, batch_size, steps_per_epoch, validation_steps)
    parts, held_out = (x, y, sample_weight), validation_data
    if validation_split and validation_data is None:
        parts, held_out = data_of.split(parts, validation_split)
    data = data_of.read(*parts, class_weight, shuffle, job.global_batch_size)
    validation = None if held_out is None else _held_out(held_out, job)
    loader = job.dataloader(data.dataset, shuffle=data.shuffle, **data.options)
    build(model, data)
    training = Training(model, job, loader, is_bare(x, data), validation, validation_freq, initial_epoch)
    return training.run(check(callbacks), epochs, 2 if verbose == "auto" else verbose)


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
    refuse_sharded(model, "Keras")
    if model.optimizer is None:
        raise ValueError("the model has no optimizer: give one to compile")
    if model.optimizer.gradient_accumulation_steps:
        raise ValueError(
            "the optimizer has gradient_accumulation_steps="
            f"{model.optimizer.gradient_accumulation_steps}: the job accumulates by itself, as far as the global batch "
            "needs it; leave it out, and make global_batch_size of init so many times larger"
        )


@dataclass(frozen=True)
class Validation:
    """Data to validate with.

    Attributes:
        loader: A loader over them.
        bare: See `is_bare`.
    """

    loader: Any
    bare: bool


def _held_out(held_out: Any, job: Job) -> Validation:
    x, y, weights = (*data_of.parts_of(held_out), None, None)[:3]
    data = data_of.read(x, y, weights, None, False, job.global_batch_size)
    return Validation(loader_over(job, data), is_bare(x, data))


class Left(Exception):
    """A callback had ended this fit at the step from which the job resumes."""


class Training:
    """One call of `fit`."""

    def __init__(
        self,
        model: Any,
        job: Job,
        loader: Any,
        bare: bool,
        validation: Validation | None,
        validation_freq: int | Sequence[int],
        first: int,
    ) -> None:
        self._model = model
        self._job = job
        self._loader = loader
        self._bare = bare
        self._validation = validation
        self._validation_freq = validation_freq
        self._first = first  # epoch
        self._seeds = Seeds(model)
        self._prepared = prepared(model, job)
        self._metrics = Metrics(model, job, self._prepared.tracked)
        self._hooks = Hooks(model)
        self._callbacks: Any = None
        self._begun = -1  # the last step that callbacks know of
        self._stops = False  # whether one has ended the training after it
        self._tried = False  # whether train_step has run

    def state_dict(self) -> dict[str, Any]:
        """Returns which step callbacks know of, and whether one has ended the training after it."""
        return {"begun": self._begun, "stops": self._stops}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned."""
        self._begun = state["begun"]
        self._stops = state.get("stops", False)  # older checkpoints do not say it

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
        parts: dict[str, Any] = {"loss": self._metrics, "begun": self}
        for number, callback in enumerate(listening.callbacks):
            if isinstance(callback, OnMain):
                callback.first_epoch = self._first
            else:
                parts[f"{CALLBACK}{number}"] = CallbackState(callback)
        carry(job, parts)
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
                logs = plain(model.get_metrics_result())
                if self._validation is not None and model._should_eval(epoch, self._validation_freq):
                    listening.on_test_begin()
                    found = evaluated(model, job, self._validation.loader, self._validation.bare)
                    listening.on_test_end(found)
                    logs |= {f"val_{name}": value for name, value in found.items()}
                listening.on_epoch_end(epoch, logs)
                if model.stop_training:
                    break
        if epochs > 0:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        listening.on_train_end(logs)
        return model.history

    def _train(self) -> None:
        """Does what is left of an epoch's steps."""
        job, model, steps = self._job, self._model, self._loader.steps_per_epoch
        self._metrics.begin_epoch()
        if job.rank is not None:
            self._begin_step()
        model.train()
        while self._run_step():
            self._prepared.optimizer.step()
            if job.step_in_epoch == steps:
                job.reduce(0.0)  # nobody goes on to the next epoch while another one may have to take this step over
            self._metrics.end_step()
            self._callbacks.on_train_batch_end(job.step_in_epoch - 1, model.get_metrics_result())
            if model.stop_training:
                self._stops = True
                break
            if job.step_in_epoch < steps:
                self._begin_step()
        job._steps.settle()  # what is saved for this step is what callbacks know now
        model.eval()

    def _run_step(self) -> bool:
        try:
            return self._job.run_step(self._loader, self._micro_batch)
        except Left:
            self._model.stop_training = True
            return False

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
                if self._stops:
                    raise Left
                self._begin_step()  # if this process joins here, its peers' state replaces what comes of it
        first = not self._tried
        with (
            self._seeds.drawing(),
            refusing_means_of_batches(),
            refusing_writes(self._model) if first else nullcontext(),
        ):
            logs = self._model.train_function([as_given(data_of.parts_of(batch), self._bare)])
        if first:
            self._tried = True
            warn_of_other_logs("train_step", logs, self._model.get_metrics_result())
        loss, denominator = self._hooks.take()
        job.backward(loss, weight=denominator)


class Carried:
    """What the present call of `fit` remembers, by one name in all calls: nothing of those that are over.

    Attributes:
        job: The job.
        parts: Objects with ``state_dict`` and ``load_state_dict``, by name.
    """

    def __init__(self, job: Job, parts: Mapping[str, Any]) -> None:
        self.job = job
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each part."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned.

        Callbacks are taken by their order: one that acts on rank 0 alone has no state, and may come or go.

        Raises:
            ValueError: If there were other callbacks.
        """
        here, there = _callbacks(self.parts), _callbacks(state)
        if len(here) != len(there):
            ours = _names(part.kind for part in here)
            theirs = _names(one.get("kind", "one") for one in there)  # older checkpoints do not say it
            raise ValueError(
                f"fit has {ours} here, and {theirs} there: give it the same callbacks in the same order on all ranks, "
                "and where a job resumes (but for those that act on rank 0 alone, such as CSVLogger)"
            )
        for part, one in zip(here, there, strict=True):
            part.load_state_dict(one)
        for name in self.parts.keys() & state.keys():
            if not name.startswith(CALLBACK):
                self.parts[name].load_state_dict(state[name])


def _callbacks(parts: Mapping[str, Any]) -> list[Any]:
    names = [name for name in parts if name.startswith(CALLBACK)]
    return [parts[name] for name in sorted(names, key=lambda name: int(name.removeprefix(CALLBACK)))]


def _names(kinds: Iterable[str]) -> str:
    given = [kind for kind in kinds if kind != "History"]  # which is Keras' own
    return f"the callbacks {', '.join(given)}" if given else "no callbacks"


def carry(job: Job, parts: Mapping[str, Any]) -> None:
    """Has joiners and checkpoints get the state of some parts, in the place of those of an earlier call of `fit`."""
    if not _carried or _carried[0].job is not job:
        _carried[:] = [Carried(job, parts)]
        job.register("keras.fit", _carried[0])
    _carried[0].parts = parts


@dataclass
class Prepared:
    """What the job knows of a model.

    Attributes:
        job: The job.
        of: The model's optimizer.
        variables: The model's variables.
        optimizer: Its optimizer in torch's shape.
        tracked: Ids of the metric variables that the job tracks.
    """

    job: Job
    of: Any
    variables: ModelVariables
    optimizer: OptimizerInShape
    tracked: set[int]


def prepared(model: Any, job: Job) -> Prepared:
    """Prepares a model and its optimizer for the job, once; what is frozen, thawed or added later is followed."""
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights: set trainable=True of the layers that fit is to train")
    float8 = next((one.path for one in model.trainable_variables if one.overwrite_with_gradient), None)
    if float8 is not None:
        raise ValueError(
            f"the weight {float8!r} is a scale of float8, which a step of one batch sets, and not the sum over its "
            "micro-batches: train with the dtype policy mixed_bfloat16, or call quantize after the last fit"
        )
    known = _prepared.get(model)
    if known is not None and known.job is not job:
        known = None
    if known is not None:
        known.variables.follow(model)
    if known is not None and known.of is model.optimizer:
        known.optimizer.trained = list(model.trainable_variables)
        return known
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = known.variables if known else job.prepare(ModelVariables(model))
    in_shape = OptimizerInShape(model.optimizer, model.trainable_variables)
    job.prepare(in_shape)
    number = next(_numbers)
    job.register(f"keras.optimizer{number}", in_shape.slots)
    job.register(f"keras.rate{number}", learning_rates(model.optimizer))  # on its own: not taken over with a step
    _prepared[model] = found = Prepared(job, model.optimizer, variables, in_shape, known.tracked if known else set())
    return found
