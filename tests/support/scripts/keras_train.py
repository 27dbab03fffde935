"""A Keras script under the launcher; its argument is a JSON object.

It trains ``epochs`` epochs of the model ``kind``, or until there is a file ``stop``, or up to the step ``stops``, and
writes what came of it to ``folder``: ``weights.npz``, ``history.json``, ``log.csv``. With ``predict`` each rank
compares what all of them predict together with what it predicts alone. ``jit`` has Keras compile the model.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import elastic_launcher.keras as elastic
from elastic_launcher.keras.backend import keras
from tests.support.keras_models import BATCH, MICRO, build, callbacks, data, use_float64

options = json.loads(sys.argv[1])
folder = Path(options["folder"])
use_float64()
job = elastic.init(BATCH, options.get("micro", MICRO))


class Pace(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Takes its time for a step, and ends the training where the test says so."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(options.get("pace", 0.0))
        if job.step == options.get("stops"):
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if job.reduce(float((folder / "stop").exists()), op="max"):
            self.model.stop_training = True


kind = options["kind"]
model = elastic.Model(build(kind))
model.jit_compile = options.get("jit", False)
history = model.fit(
    **data(kind),
    epochs=options["epochs"],
    shuffle=False,
    callbacks=[*callbacks(kind), keras.callbacks.CSVLogger(folder / "log.csv"), Pace()],
)
if options.get("predict"):
    inputs = data(kind)["x"]
    shared, alone = (
        keras.tree.flatten(one) for one in (elastic.predict(model, inputs), model.predict(inputs, verbose=0))
    )
    for ours, theirs in zip(shared, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
if job.is_main:
    np.savez(folder / "weights.npz", *model.get_weights())
    (folder / "history.json").write_text(json.dumps({"epoch": history.epoch, **history.history}))
model.save_weights(folder / "model.weights.h5")
