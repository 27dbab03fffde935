"""The pipeline: prepare, elastic_train, evaluate."""

from pathlib import Path

from kfp import dsl

from elastic_launcher.kfp import elastic_train
from pipelines.digits_elastic.steps import evaluate, prepare

SCRIPT = Path(__file__).with_name("train_digits.py")


@dsl.pipeline(name="digits-elastic", description="Handwritten digits, trained by a step that changes its size.")
def digits_elastic(
    min_nodes: int = 1,
    max_nodes: int = 3,
    global_batch_size: int = 256,
    max_batch_per_gpu: int = 64,
    hints: str = "configmap/quota/gpu-hints",
    work_dir: str = "",
) -> float:
    """Trains on as many nodes as the hints allow and tests the model.

    Args:
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes.
        global_batch_size: Samples in each optimizer step, at any number of nodes.
        max_batch_per_gpu: Most samples that one GPU takes at a time.
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file; empty for none, which means max_nodes.
        work_dir: Where the training step keeps its events and logs; none means a folder of its own.

    Returns:
        The accuracy on the test images.
    """
    data = prepare()
    training = elastic_train(
        script=SCRIPT.read_text(),
        data=data.outputs["digits"],
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        global_batch_size=global_batch_size,
        max_batch_per_gpu=max_batch_per_gpu,
        hints=hints,
        work_dir=work_dir,
        name="digits",
    )
    verdict = evaluate(model=training.outputs["model"], digits=data.outputs["digits"])
    return verdict.outputs["Output"]
