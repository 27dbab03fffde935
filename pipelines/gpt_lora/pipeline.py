"""The pipeline: prepare_base, elastic_train with Hugging Face's Trainer, compare_adapter."""

from pathlib import Path

from kfp import dsl

from elastic_launcher.kfp import elastic_train
from pipelines.gpt_lora.steps import compare_adapter, prepare_base

SCRIPT = Path(__file__).with_name("tune_lora.py")


@dsl.pipeline(name="gpt-lora", description="A small GPT-2, fine-tuned with LoRA by Hugging Face's Trainer.")
def gpt_lora(
    hints: str = "configmap/quota/gpu-hints",
    min_nodes: int = 1,
    max_nodes: int = 2,
    epochs: str = "3",
    work_dir: str = "",
) -> float:
    """Fine-tunes a small GPT-2 with LoRA on Python's own help pages about statements.

    Args:
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file; empty for none, which means max_nodes.
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes.
        epochs: How often the training goes through the text.
        work_dir: Where the training step keeps its events and logs; none means a folder of its own.

    Returns:
        The perplexity of the base model divided by that of the tuned one, on text held out; above 1 is better.
    """
    base = prepare_base()
    training = elastic_train(
        script=SCRIPT.read_text(),
        arguments=["--epochs", epochs],
        data=base.outputs["base"],
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        global_batch_size=32,
        max_batch_per_gpu=8,
        hints=hints,
        work_dir=work_dir,
        name="tune",
    )
    return compare_adapter(adapter=training.outputs["model"], base=base.outputs["base"]).outputs["Output"]
