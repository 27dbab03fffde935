"""The pipeline's own steps before and after the training: the data, and the verdict on the model."""

from kfp import dsl
from kfp.dsl import ClassificationMetrics, Dataset, Input, Metrics, Model, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["scikit-learn>=1.5"])
def prepare(digits: Output[Dataset], test_share: float = 0.25, seed: int = 7):
    """Splits scikit-learn's 1,797 scanned digits into a training and a test part.

    Args:
        digits: One NumPy archive with x_train, y_train, x_test, y_test; images are 1 x 8 x 8, between 0 and 1.
        test_share: Share of the images that is kept for the test, the same for every digit.
        seed: Seed of the split.
    """
    import numpy
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype("int64"), test_size=test_share, stratify=labels, random_state=seed
    )
    with open(digits.path, "wb") as file:
        numpy.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    digits.metadata.update(train_images=len(x_train), test_images=len(x_test))


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["torch>=2.5", "scikit-learn>=1.5"])
def evaluate(
    model: Input[Model],
    digits: Input[Dataset],
    metrics: Output[Metrics],
    confusion: Output[ClassificationMetrics],
) -> float:
    """Measures the trained model on the test images.

    Args:
        model: A program saved by torch.export, which maps a batch of images to one score for each digit.
        digits: What prepare has made.
        metrics: The accuracy and the number of test images.
        confusion: The confusion matrix: rows are the true digits, columns the predicted ones.

    Returns:
        The accuracy: the share of the test images that were recognised.
    """
    import numpy
    import torch
    from sklearn.metrics import accuracy_score, confusion_matrix

    with numpy.load(digits.path) as arrays:
        images, labels = torch.from_numpy(arrays["x_test"]), arrays["y_test"]
    with open(model.path, "rb") as file:
        program = torch.export.load(file).module()
    with torch.no_grad():
        predicted = program(images).argmax(dim=1).numpy()
    accuracy = float(accuracy_score(labels, predicted))
    metrics.log_metric("accuracy", accuracy)
    metrics.log_metric("test_images", len(labels))
    confusion.log_confusion_matrix([str(digit) for digit in range(10)], confusion_matrix(labels, predicted).tolist())
    return accuracy
