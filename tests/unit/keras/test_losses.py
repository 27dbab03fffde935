"""What a loss is divided by in each micro-batch: the global batch comes to the loss and the weights of Keras alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import elastic_launcher.keras as elastic
from elastic_launcher.keras.backend import keras
from tests.support.keras_models import BATCH, MICRO, data
from tests.unit.keras.test_fit import assert_same_weights
from tests.unit.keras.test_fit import float64 as float64  # noqa: PLC0414 - a fixture for all tests here

TOKENS = data("masked")["x"]
KINDS = np.where(np.random.RandomState(11).rand(*TOKENS.shape) < 0.4, -1, TOKENS % 3)
WEIGHTS = np.random.RandomState(1).rand(*TOKENS.shape)


def sequences(loss: Any, *, mask: bool = False, **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    tokens = layers.Embedding(9, 4, mask_zero=mask)
    model = keras.Sequential([layers.Input((7,)), tokens, layers.Dense(3, **options.pop("dense", {}))])
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


def cross_entropy(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def ignoring(y_true: Any, y_pred: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True, ignore_class=-1)


def fitted(make: Any, **given: Any) -> tuple[Any, Any, Any, Any]:
    """Trains a model elastically and one by Keras alone; returns both, and their histories."""
    elastic.init(BATCH, MICRO)
    model, plain = elastic.Model(make()), make()
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    ours = model.fit(**given, **options)
    theirs = plain.fit(**given, **options, batch_size=BATCH)
    return model, plain, ours.history, theirs.history


@pytest.mark.parametrize("mask", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize("loss", [lambda: cross_entropy(ignore_class=-1), lambda: ignoring], ids=["loss", "function"])
def test_a_loss_with_a_mask_of_its_own_is_a_mean_over_what_that_leaves(loss: Any, mask: bool) -> None:
    model, plain, ours, theirs = fitted(lambda: sequences(loss(), mask=mask), x=TOKENS, y=KINDS)
    assert_same_weights(model, plain)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
    whole = plain.evaluate(TOKENS, KINDS, batch_size=len(TOKENS), verbose=0)
    assert model.evaluate(TOKENS, KINDS) == pytest.approx(whole, rel=1e-9)


def test_masked_steps_may_have_weights_that_metrics_use_too() -> None:
    model, plain, ours, theirs = fitted(
        lambda: sequences(cross_entropy(), mask=True, weighted_metrics=["accuracy"]),
        x=TOKENS,
        y=TOKENS % 3,
        sample_weight=WEIGHTS,
    )
    assert_same_weights(model, plain)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)


def test_a_mean_over_all_samples_of_a_masked_output_stays_one() -> None:
    class Own(keras.Model):  # type: ignore[misc] # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.dense = keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(self.tokens(x))

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            return keras.ops.mean(keras.ops.square(y_pred))

    def make() -> Any:
        keras.utils.set_random_seed(3)
        model = Own()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    model, plain, ours, theirs = fitted(make, x=TOKENS, y=TOKENS % 3)
    assert_same_weights(model, plain)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)


def test_losses_with_different_denominators_are_refused() -> None:
    elastic.init(BATCH, MICRO)
    active = {"activity_regularizer": keras.regularizers.L2(0.1)}
    model = elastic.Model(sequences(cross_entropy(), mask=True, dense=active))
    with pytest.raises(ValueError, match=r"layers add losses .* their denominators differ"):
        model.fit(TOKENS, TOKENS % 3, verbose=0)
    tokens = keras.Input((7,))
    embedded = keras.layers.Embedding(9, 4)(tokens)
    both = keras.Model(tokens, [keras.layers.Dense(3)(embedded), keras.layers.Dense(3)(embedded)])
    both.compile("sgd", [cross_entropy(ignore_class=-1), cross_entropy()])
    with pytest.raises(ValueError, match=r"several losses.* their denominators differ"):
        elastic.Model(both).fit(TOKENS, [KINDS, TOKENS % 3], verbose=0)
