"""`fit` and `evaluate` in one process: what Keras alone does, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import fully_shard

import elastic_launcher.keras as elastic
from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.variables import Seeds
from tests.support.keras_models import BATCH, MICRO, build, callbacks, data, use_float64

X, Y = np.random.RandomState(0).randn(10, 6), np.arange(10) % 3


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    from keras.src.backend.common import dtypes

    before = dtypes.BIT64_TO_BIT32_DTYPE["float64"]
    use_float64()
    yield
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = before
    keras.config.set_floatx("float32")


@pytest.fixture
def job() -> Any:
    return elastic.init(BATCH, MICRO)


def assert_same_weights(one: Any, other: Any) -> None:
    for ours, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_accumulating_equals_whole_batches_of_keras(job: Any) -> None:
    model, plain = elastic.Model(build("adam")), build("adam")
    ours = model.fit(**data("adam"), epochs=2, shuffle=False, verbose=0, callbacks=callbacks("adam"))
    theirs = plain.fit(
        **data("adam"), batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks("adam")
    )
    assert_same_weights(model, plain)
    assert ours.history.keys() == theirs.history.keys()
    for name, values in theirs.history.items():
        assert ours.history[name] == pytest.approx(values, rel=1e-12), name


class Stops(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Ends the training in one of its hooks, which gets a number; counts the batches."""

    def __init__(self, hook: str, number: int) -> None:
        super().__init__()
        self.batches = 0
        setattr(self, hook, lambda at, logs=None: self._stop(at == number))

    def _stop(self, here: bool) -> None:
        self.model.stop_training |= here

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


@pytest.mark.parametrize(("hook", "number"), [("on_epoch_begin", 1), ("on_train_batch_begin", 3)])
def test_a_callback_that_stops_before_a_step_has_that_step_trained_as_in_keras(
    hook: str, number: int, job: Any
) -> None:
    model, plain, ours, theirs = elastic.Model(build("adam")), build("adam"), Stops(hook, number), Stops(hook, number)
    found = model.fit(**data("adam"), epochs=3, shuffle=False, verbose=0, callbacks=[ours])
    wanted = plain.fit(**data("adam"), batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=[theirs])
    assert 0 < ours.batches == theirs.batches
    assert_same_weights(model, plain)
    assert found.history["loss"] == pytest.approx(wanted.history["loss"], rel=1e-12)


@pytest.mark.thorough
def test_a_second_fit_with_a_thawed_layer_and_another_optimizer_goes_on(job: Any) -> None:
    def train(model: Any, **options: Any) -> Any:
        model.layers[0].trainable = False
        model.compile("sgd", model.loss)
        model.fit(**data("weights"), epochs=1, shuffle=False, verbose=0, **options)
        model.layers[0].trainable = True
        model.compile(keras.optimizers.Adam(0.01), model.loss)
        model.fit(**data("weights"), initial_epoch=1, epochs=3, shuffle=False, verbose=0, **options)
        return model

    assert_same_weights(train(elastic.Model(build("weights"))), train(build("weights"), batch_size=BATCH))


def test_early_stopping_ends_the_training_and_a_second_fit_may_follow(job: Any) -> None:
    def train(model: Any, **options: Any) -> list[list[int]]:
        stops = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True)
        epochs = [
            model.fit(**data("adam"), epochs=9, shuffle=False, verbose=0, callbacks=[stops], **options).epoch
            for _ in range(2)
        ]
        return [list(one) for one in epochs]

    model, plain = elastic.Model(build("adam")), build("adam")
    assert train(model) == train(plain, batch_size=BATCH) == [[0, 1], [0, 1]]
    assert_same_weights(model, plain)


def test_evaluate_and_predict_are_those_of_keras(job: Any) -> None:
    model, plain = elastic.Model(build("adam")), build("adam")
    model.fit(**data("adam"), epochs=1, shuffle=False, verbose=0)
    plain.set_weights(model.get_weights())
    assert model.evaluate(X, Y) == pytest.approx(plain.evaluate(X, Y, verbose=0), rel=1e-12)
    assert list(model.evaluate(X, Y, return_dict=True)) == ["accuracy", "loss"]  # as Keras sorts them
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-12)


def test_predict_of_all_ranks_is_that_of_keras_for_each_kind_of_data(job: Any) -> None:
    model, plain = elastic.Model(build("two inputs")), build("two inputs")
    model.fit(**data("two inputs"), epochs=1, shuffle=False, verbose=0)
    plain.set_weights(model.get_weights())
    inputs = data("two inputs")["x"]
    ours, theirs = elastic.predict(model, inputs), plain.predict(inputs, verbose=0)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-12)
    samples = torch.utils.data.TensorDataset(torch.from_numpy(inputs["left"]), torch.from_numpy(inputs["right"]))
    other = elastic.Model(keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(2)]))
    loader = torch.utils.data.DataLoader(samples, batch_size=7, shuffle=True)
    np.testing.assert_allclose(elastic.predict(other, loader), other.predict(inputs["left"], verbose=0), atol=1e-12)


@pytest.mark.parametrize("kind", ["masked", "weighted mean"])
def test_the_loss_over_valid_steps_does_not_depend_on_how_the_data_are_divided(job: Any, kind: str) -> None:
    model, plain = elastic.Model(build(kind)), build(kind)
    held_out = {name: values[:50] for name, values in data(kind).items()}
    validation = tuple(held_out.values())
    found = model.fit(**data(kind), epochs=1, shuffle=False, verbose=0, validation_data=validation)
    plain.set_weights(model.get_weights())
    whole = plain.evaluate(**held_out, batch_size=50, verbose=0, return_dict=True)
    assert found.history["val_loss"] == [pytest.approx(whole["loss"], rel=1e-12)]
    assert model.evaluate(**held_out, return_dict=True)["loss"] == pytest.approx(whole["loss"], rel=1e-12)


def test_a_chain_of_fits_carries_what_the_present_one_remembers(job: Any) -> None:
    model = elastic.Model(build("adam"))
    sizes = []
    for epoch in range(3):
        stops = keras.callbacks.EarlyStopping("loss", patience=5)
        model.fit(X, Y, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[stops])
        captured = job._session.state.capture().header
        sizes.append((len(captured["tensors"]), len(json.dumps(captured["registered"]))))
    assert len({tensors for tensors, _ in sizes}) == 1
    assert abs(sizes[0][1] - sizes[2][1]) < 20  # the digits of numbers
    assert str(float(stops.best)) in json.dumps(dict(captured["registered"])["keras.fit"])


def test_a_step_on_one_batch_of_a_rank_is_refused(job: Any) -> None:
    model = elastic.Model(build("adam"))
    before = model.get_weights()
    with pytest.raises(TypeError, match="train_on_batch would train .* on each rank by itself.*call fit"):
        model.train_on_batch(X[:4], Y[:4])
    assert all((one == other).all() for one, other in zip(before, model.get_weights(), strict=True))


def test_dropout_draws_again_in_another_step_and_not_in_another_run() -> None:
    def trained() -> list[Any]:
        elastic.init(BATCH, MICRO)
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        model = elastic.Model(keras.Sequential(layers))
        model.compile("sgd", "mse")
        seen: list[Any] = []
        show = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
        model.fit(np.ones((48, 6)), np.ones((48, 3)), epochs=2, verbose=0, callbacks=[show])
        return [float(one) for one in seen]

    first = trained()
    assert first == trained()
    assert len(set(first)) == 4


def test_draws_without_a_seed_differ_by_step_and_rank_and_leave_those_outside_of_steps_alone() -> None:
    def draw() -> float:
        return float(keras.random.uniform(()))

    def drawn(step: int, rank: int) -> list[float]:
        seeds.begin(step, rank)
        with seeds.drawing():
            first = draw()
        outside.append(draw())
        with seeds.drawing():
            return [first, draw()]

    model, outside = build("adam"), list[float]()
    keras.utils.set_random_seed(3)
    expected = [draw() for _ in range(4)]
    keras.utils.set_random_seed(3)
    seeds = Seeds(model)
    once, other_rank, other_step, again = drawn(5, 0), drawn(5, 1), drawn(6, 0), drawn(5, 0)
    assert once == again
    assert len({*once, *other_rank, *other_step}) == 6
    assert outside == expected


def test_a_model_without_trainable_weights_is_refused(job: Any) -> None:
    model = elastic.Model(build("adam"))
    model.trainable = False
    with pytest.raises(ValueError, match="the model has no trainable weights: set trainable=True"):
        model.fit(X, Y)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 7}, ValueError, "batch_size is 7, and the job's global batch 24"),
        ({"steps_per_epoch": 3}, ValueError, "no steps_per_epoch="),
        ({"validation_steps": 3}, ValueError, "no validation_steps="),
        ({"callbacks": [keras.callbacks.BackupAndRestore("there")]}, TypeError, "no BackupAndRestore: the job saves"),
    ],
)
def test_options_that_the_job_decides_are_refused(
    job: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        elastic.Model(build("adam")).fit(X, Y, **options)


@pytest.mark.parametrize(
    ("compiled", "message"),
    [
        ({"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)}, "gradient_accumulation_steps=2"),
        ({"loss": keras.losses.MeanSquaredError(reduction="sum")}, "reduction='sum'"),
        ({"optimizer": None}, "no optimizer"),
    ],
)
def test_what_does_not_add_up_to_the_global_batch_is_refused(job: Any, compiled: dict[str, Any], message: str) -> None:
    model = elastic.Model(build("adam"))
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    with pytest.raises(ValueError, match=message):
        model.fit(X, np.eye(3)[Y])


def test_only_rank_0_writes_files(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = elastic.Model(build("adam"))
    model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    model.save(tmp_path / "model.keras")
    assert_same_weights(keras.models.load_model(tmp_path / "model.keras"), model)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
    monkeypatch.setattr(type(job), "rank", property(lambda self: 1))
    logger = keras.callbacks.CSVLogger(tmp_path / "other.csv")
    model.fit(X, Y, verbose=0, callbacks=[logger])
    model.save(tmp_path / "other.keras")
    assert not list(tmp_path.glob("other*"))


class Named(keras.Model):  # type: ignore[misc] # Keras has no types
    """A model whose own steps return logs by other names than those of its metrics, as Keras' guides have them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.total = keras.layers.Dense(6), keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total]

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self.zero_grad()
        logs, loss = self._logged(data)
        self.optimizer.scale_loss(loss).backward()
        self.optimizer.apply([one.value.grad for one in self.trainable_weights], self.trainable_weights)
        return logs

    def test_step(self, data: Any) -> Any:
        return self._logged(data)[0]

    def _logged(self, data: Any) -> Any:
        loss = keras.ops.mean(keras.ops.square(data - self(data)))  # Keras gives x alone in no tuple
        self.total.update_state(loss, sample_weight=len(data))
        return {"loss": self.total.result()}, loss


class Bare(Named):
    """Takes each batch of x as Keras gives it; predicts twice its output."""

    def predict_step(self, data: Any) -> Any:
        return 2 * self(data)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_models_own_steps_get_x_alone_as_in_keras(loaded: bool, job: Any) -> None:
    def trained(model: Any, **options: Any) -> Any:
        x = torch.utils.data.DataLoader(torch.from_numpy(X), batch_size=BATCH) if loaded else X
        model.compile(keras.optimizers.SGD(0.1))
        more = {} if loaded else options
        model.fit(x, epochs=2, verbose=0, shuffle=False, **more)
        return model

    keras.utils.set_random_seed(3)
    model = trained(elastic.Model(Bare()))
    keras.utils.set_random_seed(3)
    plain = trained(Bare(), batch_size=BATCH)
    assert_same_weights(model, plain)
    assert model.evaluate(X, return_dict=True)["total_loss"] == pytest.approx(
        plain.evaluate(X, verbose=0, return_dict=True)["loss"], rel=1e-12
    )
    np.testing.assert_allclose(elastic.predict(model, X), plain.predict(X, verbose=0), atol=1e-12)


class Modes(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Notes whether the model trains, which torch's own modules in it follow."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(self.model.training)

    on_train_batch_end = on_epoch_end = on_epoch_begin


@pytest.mark.thorough
def test_between_epochs_a_model_is_in_the_mode_that_keras_has_it_in(job: Any) -> None:
    model, plain, ours, theirs = elastic.Model(build("adam")), build("adam"), Modes(), Modes()
    model.fit(**data("adam"), epochs=2, verbose=0, callbacks=[ours])
    plain.fit(**data("adam"), epochs=2, verbose=0, callbacks=[theirs], batch_size=BATCH)
    assert ours.seen == theirs.seen
    assert model.training == plain.training


def test_no_epoch_leaves_the_weights_alone(job: Any) -> None:
    model, plain = elastic.Model(build("scheduled")), build("scheduled")
    model.fit(X, Y, epochs=0, verbose=0)
    assert_same_weights(model, plain)


def test_a_model_needs_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.keras.job._jobs", [])
    with pytest.raises(RuntimeError, match=r"call elastic_launcher.keras.init"):
        elastic.Model(build("adam"))


def test_a_torch_module_in_the_model_has_its_statistics_averaged(job: Any) -> None:
    torch.manual_seed(0)
    module = torch.nn.BatchNorm1d(6).double()
    model = elastic.Model(keras.Sequential([keras.layers.TorchModuleWrapper(module), keras.layers.Dense(3)]))
    model.compile("sgd", "mse")
    model.fit(X, np.eye(3)[Y], epochs=2, verbose=0)
    assert module.running_mean is not None and module.running_mean.abs().sum() > 0


@pytest.mark.parametrize("wrapped", [False, True])
def test_micro_batches_of_one_sample_are_refused_where_a_layer_normalizes_batches(wrapped: bool) -> None:
    normalizes = torch.nn.BatchNorm1d(6).double()
    layer = keras.layers.TorchModuleWrapper(normalizes) if wrapped else keras.layers.BatchNormalization()
    elastic.init(4, 1)
    model = elastic.Model(keras.Sequential([layer, keras.layers.Dense(3)]))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"(batch_normalization|torch_module_wrapper)\S* needs two"):
        model.fit(X, np.eye(3)[Y], verbose=0)


def test_data_without_targets_and_an_own_loss(job: Any) -> None:
    class Reconstructs(keras.Model):  # type: ignore[misc] # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(6)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            return keras.ops.mean(keras.ops.square(x - y_pred))

    def trained(**options: Any) -> Any:
        keras.utils.set_random_seed(3)
        model = Reconstructs()
        model.compile("sgd")
        (elastic.Model(model) if not options else model).fit(X, epochs=2, shuffle=False, verbose=0, **options)
        return model

    assert_same_weights(trained(), trained(batch_size=BATCH))


class Scored(Named):
    """A model that scores itself by a metric which makes its variables with its first samples."""

    def __init__(self) -> None:
        super().__init__()
        self.score = keras.metrics.R2Score()

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.score]

    def _logged(self, data: Any) -> Any:
        logs, loss = super()._logged(data)
        self.score.update_state(data, self(data).detach())
        return {**logs, "r2": self.score.result()}, loss


def test_a_metric_that_is_made_within_a_step_is_refused_and_one_made_before_counts_all(job: Any) -> None:
    model = elastic.Model(Scored())
    model.compile("sgd")
    with pytest.raises(ValueError, match="the metric 'r2_score' makes its variables with its first samples"):
        model.fit(X, epochs=1, shuffle=False, verbose=0)
    elastic.init(BATCH, MICRO)
    model = elastic.Model(Scored())
    model.compile("sgd")
    model.score.update_state(X, model(X).detach())
    model.score.reset_state()
    assert "r2_score" in model.fit(X, epochs=1, shuffle=False, verbose=0).history


@pytest.mark.usefixtures("node_of_one")
def test_a_sharded_model_is_refused(job: Any) -> None:
    model = elastic.Model(build("adam"))
    fully_shard(model)
    with pytest.raises(TypeError, match="sharded by fully_shard: Keras was not tried with it"):
        model.fit(**data("adam"), epochs=1, verbose=0)


@pytest.mark.parametrize("metric", ["Precision", "Recall", "TruePositives", "F1Score", "AUC"])
def test_metrics_that_keep_an_array_of_one_entry_are_validated_as_in_keras(job: Any, metric: str) -> None:
    found = []
    for elastically in (True, False):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
        own = getattr(keras.metrics, metric)(name="own", **({"threshold": 0.5} if metric == "F1Score" else {}))
        model.compile("sgd", "binary_crossentropy", metrics=[own])
        batch = {} if elastically else {"batch_size": BATCH}
        data = {"x": X, "y": (Y[:, None] > 0).astype("float64")}
        fitted = (elastic.Model(model) if elastically else model).fit(
            **data, validation_data=tuple(data.values()), epochs=2, shuffle=False, verbose=0, **batch
        )
        found.append([*fitted.history["own"], *fitted.history["val_own"]])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_one_callback_without_a_list_is_taken_as_in_keras(job: Any, tmp_path: Path) -> None:
    model = elastic.Model(build("adam"))
    model.fit(X, Y, epochs=2, verbose=0, callbacks=keras.callbacks.CSVLogger(tmp_path / "log.csv"))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    seen: list[Any] = []
    model.evaluate(X, Y, callbacks=keras.callbacks.LambdaCallback(on_test_end=seen.append))
    assert len(seen) == 1


def test_logs_that_are_no_metrics_are_named_in_a_warning(job: Any) -> None:
    model = elastic.Model(Named())
    model.compile("sgd")
    with pytest.warns(UserWarning, match="train_step returns 'loss', which is no metric of the model: 'total_loss'"):
        assert list(model.fit(X, verbose=0).history) == ["total_loss"]
    with pytest.warns(UserWarning, match="test_step returns 'loss', which is no metric of the model: 'total_loss'"):
        assert list(model.evaluate(X, return_dict=True)) == ["total_loss"]
