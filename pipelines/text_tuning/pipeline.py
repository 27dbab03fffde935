"""The pipeline: prepare, elastic_train, compare."""

from pathlib import Path

from kfp import dsl

from elastic_launcher.kfp import elastic_train
from pipelines.text_tuning.steps import compare, prepare

SCRIPT = Path(__file__).with_name("tune.py")


@dsl.pipeline(name="text-tuning", description="A small text model, fine-tuned with a token-weighted loss.")
def text_tuning(
    hints: str = "configmap/quota/gpu-hints", min_nodes: int = 1, max_nodes: int = 2, epochs: str = "2"
) -> float:
    """Fine-tunes a model of bytes on Python's own help pages about statements.

    Args:
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file; empty for none, which means max_nodes.
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes.
        epochs: How often the training goes through the lines.

    Returns:
        By how much less a token surprises the tuned model, as a ratio of perplexities.
    """
    texts = prepare()
    training = elastic_train(
        script=SCRIPT.read_text(),
        arguments=["--epochs", epochs],
        data=texts.outputs["texts"],
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        global_batch_size=64,
        max_batch_per_gpu=16,
        hints=hints,
        name="tune",
    )
    return compare(model=training.outputs["model"], texts=texts.outputs["texts"]).outputs["Output"]
