"""Keras models, their data and how they are compiled, of the kinds that the adapter promises; in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elastic_launcher.keras.backend import keras

SAMPLES, BATCH, MICRO = 203, 24, 5  # the last step of an epoch has 11 samples


def use_float64() -> None:
    """Has Keras compute in float64, which it does on torch only with its table of result types changed."""
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    keras.config.set_floatx("float64")


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape)


def _classes(seed: int = 1) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 3, SAMPLES)


def _layers(*layers: Any, shape: tuple[int, ...] = (6,)) -> Any:
    return keras.Sequential([keras.layers.Input(shape), *layers])


def _classifier(optimizer: Any, *middle: Any, loss: Any = None, **options: Any) -> Any:
    dense = keras.layers.Dense
    model = _layers(dense(8, activation="tanh"), *middle, dense(3, kernel_regularizer=keras.regularizers.L2(0.01)))
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def _sequences() -> np.ndarray:
    """Token numbers; 0 is padding, of which each sequence has another part."""
    tokens = np.random.RandomState(4).randint(1, 9, (SAMPLES, 7))
    lengths = np.random.RandomState(5).randint(1, 8, SAMPLES)
    return tokens * (np.arange(7) < lengths[:, None])


def _masked() -> Any:
    layers = keras.layers
    model = _layers(layers.Embedding(9, 4, mask_zero=True), layers.SimpleRNN(5, return_sequences=True), shape=(7,))
    model.add(layers.Dense(3))
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class OwnStep(keras.Model):  # type: ignore[misc] # Keras has no types
    """A subclassed model with a `train_step` of its own, which calls Keras' hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.second(self.first(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred) + 0.01 * keras.ops.sum(keras.ops.square(self.second.kernel))
        self._loss_tracker.update_state(loss, sample_weight=len(x))
        self.optimizer.scale_loss(loss).backward()
        variables = list(self.trainable_weights)
        self.optimizer.apply([variable.value.grad for variable in variables], variables)
        return self.compute_metrics(x, y, y_pred)


def _own_step() -> Any:
    model = OwnStep()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _two_inputs() -> Any:
    left, right = keras.Input((6,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([keras.layers.Dense(4, activation="tanh")(left), right])
    outputs = {"kind": keras.layers.Dense(3, name="kind")(joined), "size": keras.layers.Dense(1, name="size")(joined)}
    model = keras.Model({"left": left, "right": right}, outputs)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("rmsprop", {"kind": cross_entropy, "size": "mse"}, metrics={"kind": ["accuracy"], "size": ["mae"]})
    return model


def _scheduled() -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9), use_ema=True)


def _weighted_mean() -> Any:
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return _classifier(keras.optimizers.SGD(0.1), loss=cross_entropy)


MODELS: Mapping[str, Callable[[], Any]] = {
    "adam": lambda: _classifier(keras.optimizers.Adam(0.01)),
    "clipped": lambda: _classifier(keras.optimizers.AdamW(0.01, global_clipnorm=0.3)),
    "momentum": lambda: _classifier(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)),
    "scheduled": lambda: _classifier(_scheduled()),
    "scaled": lambda: _classifier(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 8.0, 3)),
    "weights": lambda: _classifier(keras.optimizers.SGD(0.1)),
    "classes": lambda: _classifier(keras.optimizers.SGD(0.1)),
    "weighted mean": _weighted_mean,
    "masked": _masked,
    "own step": _own_step,
    "two inputs": _two_inputs,
}


def data(kind: str) -> dict[str, Any]:
    """Returns the arguments of `fit` that hold the data for a model."""
    x, y = _numbers(SAMPLES, 6), _classes()
    match kind:
        case "weights" | "weighted mean":
            return {"x": x, "y": y, "sample_weight": np.random.RandomState(3).rand(SAMPLES)}
        case "classes":
            return {"x": x, "y": y, "class_weight": {0: 0.3, 1: 2.0}}
        case "masked":
            tokens = _sequences()
            return {"x": tokens, "y": tokens % 3}
        case "two inputs":
            inputs = {"left": x, "right": _numbers(SAMPLES, 2, seed=7)}
            return {"x": inputs, "y": {"kind": y, "size": _numbers(SAMPLES, 1, seed=8)}}
        case _:
            held_out = _numbers(50, 6, seed=9), _classes(2)[:50]
            return {"x": x, "y": y, "validation_data": held_out, "validation_freq": 2}


class Cooling(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Lowers the learning rate by a factor, before each step and after it."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9999

    on_train_batch_end = on_train_batch_begin


def callbacks(kind: str) -> list[Any]:
    """Returns callbacks that decide by the logs, and change the training of a model."""
    if kind == "scheduled":  # its rate can't be set
        return [keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5, restore_best_weights=True)]
    return [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.8, patience=1, min_delta=0.01),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.99),
        Cooling(),
    ]


def build(kind: str) -> Any:
    """Returns a compiled model; always the same."""
    keras.utils.set_random_seed(3)
    return MODELS[kind]()
