"""What would happen once for each micro-batch, and not once for a step, is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import elastic_launcher.keras as elastic
from elastic_launcher.keras.backend import keras
from tests.support.keras_models import BATCH, MICRO
from tests.unit.keras.test_fit import Named
from tests.unit.keras.test_fit import float64 as float64  # noqa: PLC0414 - a fixture for all tests here

X = np.random.RandomState(0).randn(10, 6)


def model_of(*layers: Any, **compiled: Any) -> Any:
    elastic.init(BATCH, MICRO)
    model = elastic.Model(keras.Sequential([keras.layers.Input((6,)), *layers]))
    model.compile("sgd", "mse", **compiled)
    return model


def test_a_layer_that_writes_to_its_weights() -> None:
    """Ranks with different numbers of micro-batches would come apart."""
    model = model_of(keras.layers.SpectralNormalization(keras.layers.Dense(6)))
    with pytest.raises(
        ValueError, match=r"writes to the weight '.*/kernel', as SpectralNormalization does.*constraint"
    ):
        model.fit(X, X, verbose=0)


def test_statistics_and_seeds_are_no_weights() -> None:
    model = model_of(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(6))
    assert "loss" in model.fit(X, X, verbose=0).history


def error(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def test_a_metric_with_one_number_for_a_batch() -> None:
    model = model_of(keras.layers.Dense(6), metrics=[error])
    with pytest.raises(ValueError, match=r"the metric 'error' is a function that returns one number.*axis=-1"):
        model.fit(X, X, verbose=0)
    with pytest.raises(ValueError, match="the metric 'error' is a function"):
        model.evaluate(X, X)


class Unweighted(Named):
    """A model that takes the mean of its batches' losses."""

    def _logged(self, data: Any) -> Any:
        loss = keras.ops.mean(keras.ops.square(data - self(data)))
        self.total.update_state(loss)
        return {"total_loss": self.total.result()}, loss


def test_a_mean_of_batches_without_their_sizes_and_a_callbacks_own_which_is_left_alone() -> None:
    elastic.init(BATCH, MICRO)
    model = elastic.Model(Unweighted())
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"the metric 'total_loss' is a mean .*sample_weight=len\(x\)"):
        model.fit(X, verbose=0)
    seen = keras.metrics.Mean()
    show = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update_state(logs["loss"]))
    model = model_of(keras.layers.Dense(6))
    history = model.fit(X, X, epochs=2, verbose=0, callbacks=[show]).history
    assert float(seen.result()) == pytest.approx(np.mean(history["loss"]))
