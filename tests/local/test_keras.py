"""A Keras model under the launcher equals Keras' own fit in one process with the global batch, logs included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_launcher.keras.backend import keras
from tests.support.compiler import COMPILER, HEADER
from tests.support.keras_models import BATCH, MODELS, build, callbacks, data, use_float64
from tests.support.places import SCRIPTS
from tests.support.plays import launch_training, notify_rank_0, resize, stop_and_resume, train_twice

SCRIPT = SCRIPTS / "keras_train.py"
EPOCHS = 3


@pytest.fixture(autouse=True)
def float64() -> Any:
    from keras.src.backend.common import dtypes

    before = dtypes.BIT64_TO_BIT32_DTYPE["float64"]
    use_float64()
    yield
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = before
    keras.config.set_floatx("float32")


class StopsAt(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Decides after a step that the training ends."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if not self._left:
            self.model.stop_training = True


def assert_as_plain(folder: Path, kind: str, *more: Any, again: int = 0) -> int:
    """Fails unless the model and the history are those of Keras alone; returns the number of epochs.

    The last epoch has so many rows ``again`` in the log.
    """
    history = json.loads((folder / "history.json").read_text())
    epochs = len(history["epoch"])
    assert history["epoch"] == list(range(epochs))
    plain = build(kind)
    expected = plain.fit(
        **data(kind), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks(kind), *more]
    ).history
    del history["epoch"]
    assert sorted(history) == sorted(expected)
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, rel=1e-9), name
    with np.load(folder / "weights.npz") as weights:
        for ours, theirs in zip(weights.values(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    rows = (folder / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", *map(str, range(epochs)), *[str(epochs - 1)] * again]
    return epochs


def trained(
    folder: Path, kind: str, nodes: str, environment: dict[str, str] | None = None, jit: bool = False
) -> list[Any]:
    """Trains under the launcher; returns the sizes of the generations."""
    options = json.dumps({"folder": str(folder), "kind": kind, "epochs": EPOCHS, "predict": True, "jit": jit})
    return launch_training(SCRIPT, options, folder, nodes, environment)


@pytest.mark.parametrize(
    "kind", ["adam", *(pytest.param(one, marks=pytest.mark.thorough) for one in MODELS if one != "adam")]
)
def test_two_ranks_train_what_keras_alone_does(kind: str, tmp_path: Path) -> None:
    trained(tmp_path, kind, "2:2")
    assert assert_as_plain(tmp_path, kind) == EPOCHS


@pytest.mark.thorough
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler: install g++, or name one in CXX")
@pytest.mark.skipif(not HEADER.exists(), reason="torch.compile needs Python's headers")
@pytest.mark.parametrize("kind", ["adam", "masked"])
def test_two_ranks_train_a_compiled_model(kind: str, tmp_path: Path) -> None:
    trained(tmp_path, kind, "2:2", jit=True)
    assert assert_as_plain(tmp_path, kind) == EPOCHS


def test_resizes_in_the_middle_of_epochs(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": 10_000, "pace": 0.02})
    resize(SCRIPT, options, tmp_path)
    assert assert_as_plain(tmp_path, "adam") > 1


def test_rank_0_is_killed(tmp_path: Path) -> None:
    sizes = trained(tmp_path, "adam", "2:2", {"ELASTIC_FAULT": "reduction@7:1"})
    assert len(sizes) > 1
    assert assert_as_plain(tmp_path, "adam") == EPOCHS


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("break=reduced@26:1", id="the last step of fit, on rank 0"),
        pytest.param("break=reduced@26:2", id="the last step of fit"),
        pytest.param("break=reduced@17:1", id="the last step of an epoch, on rank 0"),
        pytest.param("break=reduced@7:1", id="a step in the middle, on rank 0"),
    ],
)
@pytest.mark.parametrize("kind", ["adam", "scaled"])
def test_a_rank_loses_the_reduction_of_a_step(kind: str, fault: str, tmp_path: Path) -> None:
    sizes = trained(tmp_path, kind, "2:2", {"ELASTIC_FAULT": fault})
    assert len(sizes) > 1
    assert assert_as_plain(tmp_path, kind) == EPOCHS


@pytest.mark.thorough
def test_the_node_of_rank_0_gets_notice(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": 10_000, "pace": 0.02})
    notify_rank_0(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "adam")


@pytest.mark.thorough
def test_a_stopped_job_resumes_at_another_size(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": 10_000, "pace": 0.02})
    stop_and_resume(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "adam")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["adam", "scheduled"])
def test_a_training_that_a_callback_has_ended_ends_at_once_where_it_resumes(kind: str, tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": kind, "epochs": EPOCHS, "stops": 12})
    train_twice(SCRIPT, options, tmp_path, "done: 12 steps", every=12)
    assert (tmp_path / "checkpoints").exists()
    assert assert_as_plain(tmp_path, kind, StopsAt(12), again=1) == 2
