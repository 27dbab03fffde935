"""The pipeline: prepare, elastic_train with a Keras script, evaluate_keras."""

from pathlib import Path

from kfp import dsl

from elastic_launcher.kfp import elastic_train
from pipelines.digits_elastic.steps import prepare
from pipelines.digits_keras.steps import evaluate_keras

SCRIPT = Path(__file__).with_name("train_keras.py")


@dsl.pipeline(name="digits-keras", description="Handwritten digits, recognised by a Keras model.")
def digits_keras(
    min_nodes: int = 1,
    max_nodes: int = 3,
    epochs: str = "20",
    hints: str = "configmap/quota/gpu-hints",
    work_dir: str = "",
) -> float:
    """Trains a Keras model on as many nodes as the hints allow and tests it.

    Args:
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes.
        epochs: How often the training goes through the data.
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file; empty for none, which means max_nodes.
        work_dir: Where the training step keeps its events and logs; none means a folder of its own.

    Returns:
        The accuracy on the test images.
    """
    data = prepare()
    training = elastic_train(
        script=SCRIPT.read_text(),
        arguments=["--epochs", epochs],
        data=data.outputs["digits"],
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        global_batch_size=128,
        max_batch_per_gpu=64,
        hints=hints,
        work_dir=work_dir,
        name="digits",
    )
    return evaluate_keras(model=training.outputs["model"], digits=data.outputs["digits"]).outputs["Output"]
