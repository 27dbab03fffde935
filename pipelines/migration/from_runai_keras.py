"""Trains a Keras model on the digits, with 256 samples in each optimizer step."""

import keras
import runai.elastic.keras
from sklearn.datasets import load_digits

runai.elastic.keras.init(256, 64)
keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = images[:1536].reshape(-1, 8, 8, 1) / 16, labels[:1536]
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model = runai.elastic.keras.models.Model(model)
model.compile(keras.optimizers.Adam(0.002), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=runai.elastic.batch_size, epochs=30, verbose=2 if runai.elastic.master else 0)
if runai.elastic.master:
    model.save("digits.keras")
