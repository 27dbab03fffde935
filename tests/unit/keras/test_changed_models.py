"""A model that changes between two calls of `fit`, and layers that carry something from one batch to the next."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import elastic_launcher.keras as elastic
from elastic_launcher.keras.backend import keras
from tests.support.keras_models import BATCH, build, data
from tests.unit.keras.test_fit import X, Y, assert_same_weights
from tests.unit.keras.test_fit import float64 as float64  # noqa: PLC0414 - a fixture for all tests here
from tests.unit.keras.test_fit import job as job  # noqa: PLC0414


def test_a_layer_frozen_between_two_fits_stays_and_one_that_the_optimizer_does_not_know_is_refused(job: Any) -> None:
    def train(model: Any, **options: Any) -> Any:
        for trained in (True, False, True):
            model.layers[0].trainable = trained
            model.fit(**data("weights"), shuffle=False, verbose=0, **options)
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Gradients do not exist")
        assert_same_weights(train(elastic.Model(build("adam"))), train(build("adam"), batch_size=BATCH))
    model = elastic.Model(build("adam"))
    model.layers[0].trainable = False
    model.compile("sgd", model.loss)
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable = True
    with pytest.raises(ValueError, match="recreate a new optimizer"):
        model.fit(X, Y, verbose=0)


def test_ranks_share_the_statistics_of_a_layer_that_is_added_between_two_fits(job: Any) -> None:
    model = elastic.Model(build("adam"))
    model.fit(X, Y, verbose=0)
    model.add(keras.layers.BatchNormalization())
    model.compile("sgd", model.loss)
    model.fit(X, Y, verbose=0)
    names = job._session.state.capture().header["buffers"]
    assert [name.rpartition("/")[2] for name in names] == ["moving_mean", "moving_variance"]


@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_layer_that_carries_states_from_batch_to_batch_is_refused(call: str, job: Any) -> None:
    rnn = keras.layers.Bidirectional(keras.layers.LSTM(2, stateful=True))
    model = elastic.Model(keras.Sequential([keras.layers.Input(batch_shape=(BATCH, 5, 2)), rnn]))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="is stateful: .* Pass stateful=False"):
        getattr(model, call)(np.ones((BATCH, 5, 2)), np.ones((BATCH, 4)))


def test_a_model_in_float8_is_refused(job: Any) -> None:
    model = elastic.Model(build("adam"))
    model.quantize("float8")
    model.compile("sgd", model.loss)
    with pytest.raises(ValueError, match="inputs_scale' is a scale of float8, .* mixed_bfloat16"):
        model.fit(X, Y, verbose=0)
