"""The step after the training: the verdict on a Keras model."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", packages_to_install=["keras>=3.12,<4", "torch>=2.5"])
def evaluate_keras(model: Input[Model], digits: Input[Dataset], metrics: Output[Metrics]) -> float:
    """Measures a trained Keras model on the test images.

    Args:
        model: A model in Keras' own format.
        digits: What prepare has made.
        metrics: The accuracy and the number of test images.

    Returns:
        The accuracy: the share of the test images that were recognised.
    """
    import os
    import shutil
    import tempfile

    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy

    with numpy.load(digits.path) as arrays:
        images, labels = arrays["x_test"].transpose(0, 2, 3, 1), arrays["y_test"]
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(model.path, os.path.join(folder, "model.keras"))  # Keras goes by the ending
        trained = keras.models.load_model(path)
    accuracy = float(trained.evaluate(images, labels, verbose=0, return_dict=True)["accuracy"])
    metrics.log_metric("accuracy", accuracy)
    metrics.log_metric("test_images", len(labels))
    return accuracy
