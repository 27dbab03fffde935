"""Keras 3 models as elastic jobs, on Keras' torch backend.

    import elastic_launcher.keras as elastic

    job = elastic.init(global_batch_size=256, max_batch_per_gpu=64)
    model = elastic.Model(build_model())
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=10)

To Keras each process is alone, and one batch of `fit` is one optimizer step of the job: it has the global batch,
whatever the number of ranks.
"""

from elastic_launcher.keras.callbacks import on_main
from elastic_launcher.keras.evaluate import evaluate, predict
from elastic_launcher.keras.fit import fit
from elastic_launcher.keras.job import init
from elastic_launcher.keras.model import Model

__all__ = ["Model", "evaluate", "fit", "init", "on_main", "predict"]
