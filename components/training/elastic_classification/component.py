"""What a training says of its classes, shown by a lightweight Python component."""

from kfp import dsl
from kfp.dsl import ClassificationMetrics, Input, Metrics, Output


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp]==0.1.0"],
    install_kfp_package=False,
)
def elastic_classification(metrics: Input[Metrics], classification: Output[ClassificationMetrics]):
    """Shows the confusion matrix and the ROC curve that a training's script left beside its model.

    Kubeflow registers each artifact that a component declares, also an empty one, so the training steps declare none
    for this. The step is red when the script left nothing of the kind.

    Args:
        metrics: The training step's output of that name.
        classification: The confusion matrix and the ROC curve.
    """
    from elastic_launcher.kfp_steps.classification import classification_step

    classification_step(metrics, classification)


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_classification, package_path=__file__.replace(".py", ".yaml"))
