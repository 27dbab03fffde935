"""Trains a small convolutional Keras model on the digits; runs alike under python and elastic-launcher."""

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

import elastic_launcher.keras as elastic


def network() -> keras.Model:
    """Returns a network that maps 8 x 8 x 1 images to ten scores."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def main() -> None:
    """Trains, validates after each epoch, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    job = elastic.init()  # batch sizes come from the pipeline step
    with numpy.load(os.environ["ELASTIC_DATA"]) as arrays:
        data = {name: arrays[name] for name in arrays.files}
    x_train, x_test = (data[name].transpose(0, 2, 3, 1) for name in ("x_train", "x_test"))
    model = elastic.Model(network())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.003), loss, metrics=["accuracy"])
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: job.log(logs))
    model.fit(x_train, data["y_train"], epochs=epochs, validation_data=(x_test, data["y_test"]), callbacks=[told])

    output = Path(os.environ.get("ELASTIC_OUTPUT", "digits"))
    partial = output.with_name(output.name + ".keras")  # Keras goes by the ending
    model.save(partial)
    if job.is_main:
        os.replace(partial, output)


if __name__ == "__main__":
    main()
