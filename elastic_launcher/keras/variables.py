"""A Keras model's variables and optimizer, in the shape in which torch has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from elastic_launcher.keras.backend import keras
from elastic_launcher.torch import rng

SEED_BITS = 0x3FFFFFFF
global_seed_generator: Any = sys.modules[keras.random.SeedGenerator.__module__].global_seed_generator


class ModelVariables(nn.Module):
    """The variables of a model, in the same memory: those that can be trained are parameters, statistics are buffers.

    Keras itself has statistics as parameters without gradients. The states of its random generators are left out: each
    rank has its own (see `Seeds`).

    Attributes:
        batch_statistics: A layer that takes statistics of a micro-batch, so that this needs two samples; or None.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.follow(model)

    def follow(self, model: Any) -> None:
        """Takes in what the model has more of than before, as after ``model.add`` or ``enable_lora``."""
        layers = list(model._flatten_layers())
        seeds, statistics = _changed_by(layers)
        known = {id(tensor) for tensor in (*self.parameters(), *self.buffers())}
        for number, variable in enumerate(model.variables):
            name = f"{number}:{variable.path}".replace(".", "_")
            if id(variable) in seeds or id(variable.value) in known:
                continue
            if id(variable) in statistics:
                self.register_buffer(name, variable.value)
            else:
                self.register_parameter(name, variable.value)
        self.batch_statistics = next((layer.name for layer in layers if _takes_statistics(layer)), None)
        known = {id(tensor) for tensor in (*self.parameters(), *self.buffers())}
        for number, (name, buffer) in enumerate(model.named_buffers()):  # of torch modules in the model
            if id(buffer) not in known:
                self.register_buffer(f"{number}:{name}".replace(".", "_"), buffer)


def _changed_by(layers: Sequence[Any]) -> tuple[set[int], set[int]]:
    """Returns the ids of what layers change by themselves: states of random generators, and statistics."""
    seeds = {id(generator.state) for layer in layers for generator in layer._seed_generators}
    return seeds, {id(variable) for layer in layers for variable in layer._non_trainable_variables}


@contextmanager
def refusing_writes(model: Any) -> Iterator[None]:
    """Refuses a `train_step`, or a layer in it, that writes to weights: each rank would write something else.

    Raises:
        ValueError: If one has.
    """
    others = set[int]().union(*_changed_by(list(model._flatten_layers())))
    before = [(one, one.value._version) for one in model.variables if id(one) not in others]
    yield
    for variable, version in before:
        if variable.value._version != version:
            raise ValueError(
                f"a train_step or a layer in it writes to the weight {variable.path!r}, as SpectralNormalization does: "
                "each rank would write what comes of its own micro-batches. Change weights by the optimizer, in a "
                "constraint (kernel_constraint=) or in a callback's on_train_batch_end, once for each step"
            )


def _takes_statistics(layer: Any) -> bool:
    wrapped = layer.module.modules() if isinstance(layer, keras.layers.TorchModuleWrapper) else ()
    return isinstance(layer, keras.layers.BatchNormalization) or any(isinstance(one, _BatchNorm) for one in wrapped)


class Values(nn.Module):
    """The values of Keras variables, in the same memory, for joiners and checkpoints."""

    def __init__(self, variables: Iterable[Any]) -> None:
        super().__init__()
        for number, variable in enumerate(variables):
            self.register_buffer(str(number), variable.value)


def learning_rates(optimizer: Any) -> Values:
    """Returns the learning rates, which callbacks set on each rank; none that follow a schedule."""
    return Values(one for one in optimizer.variables if id(one) in _rates(optimizer))


def _rates(optimizer: Any) -> set[int]:
    """Returns the ids of the learning rates of an optimizer, and of those that it wraps."""
    wrapped = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return {id(optimizer._learning_rate)}.union(*(_rates(one) for one in wrapped if one is not None))


class OptimizerInShape(torch.optim.Optimizer):
    """A torch optimizer whose step is a Keras optimizer's `apply`, with the gradients of the global batch.

    Attributes:
        slots: The Keras optimizer's moments and counts, which a rank takes over from a peer together with a step.
        trained: The variables that it changes; Keras refuses those that its optimizer was not built with.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self.slots = Values(one for one in optimizer.variables if id(one) not in _rates(optimizer))
        self.trained = list(variables)
        self._apply = optimizer.apply
        super().__init__([variable.value for variable in variables], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Applies the gradients."""
        with torch.no_grad():
            self._apply([variable.value.grad for variable in self.trained], self.trained)


class Seeds:
    """The random generators of a model's layers: in each attempt at a step, each rank draws numbers of its own.

    So it is with the generator of Keras, from which draws that are given no seed come; outside of steps it stays as it
    was, the same on all ranks.
    """

    def __init__(self, model: Any) -> None:
        generators = [one for layer in model._flatten_layers() for one in layer._seed_generators]
        self._generators = [(one, int(_state(one)[0])) for one in generators]
        self._in_steps = _state(global_seed_generator())
        self._seed = int(self._in_steps[0])

    def begin(self, step: int, rank: int) -> None:
        """Begins a step, or begins one again."""

        def begun(seed: int) -> np.ndarray:
            return np.array([rng.derive(seed, step, rank) & SEED_BITS, 0])

        for generator, seed in self._generators:
            generator.state.assign(begun(seed))
        self._in_steps = begun(self._seed)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Has a part of the step draw from these."""
        shared = global_seed_generator()
        before = _state(shared)
        shared.state.assign(self._in_steps)
        try:
            yield
        finally:
            self._in_steps = _state(shared)
            shared.state.assign(before)


def _state(generator: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(generator.state))
