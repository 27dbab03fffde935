"""The steps around the fine-tuning: a base model and text before it, an evaluation of the adapter after it."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["torch>=2.5", "transformers>=4.57,<6"])
def prepare_base(base: Output[Dataset], steps: int = 60, length: int = 64, seed: int = 7):
    """Makes a GPT-2 of bytes that knows some of Python's help pages, and text of the others.

    Args:
        base: A folder: `model` (in Hugging Face's format) and `rows.pt` (`train` and `test`: text as bytes).
        steps: Optimizer steps of the base model.
        length: Bytes in a row.
        seed: Seed of the base model.
    """
    import os
    import pydoc_data.topics

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    TUNED = {"if", "for", "while", "with", "try", "function", "class", "import", "assignment", "compound"}

    def rows_of(about: bool) -> torch.Tensor:
        pages = [page for name, page in sorted(pydoc_data.topics.topics.items()) if (name in TUNED) is about]
        text = torch.tensor(list("\n".join(pages).encode()), dtype=torch.int64)
        return text[: len(text) // length * length].reshape(-1, length)

    torch.manual_seed(seed)
    tuned, general = rows_of(True), rows_of(False)
    sizes = {"vocab_size": 256, "n_positions": length, "n_layer": 2, "n_embd": 64, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(steps):
        rows = general[(32 * step + torch.arange(32)) % len(general)]
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = torch.arange(len(tuned)) % 5 == 0
    model.save_pretrained(os.path.join(base.path, "model"))
    torch.save({"train": tuned[~held_out], "test": tuned[held_out]}, os.path.join(base.path, "rows.pt"))
    base.metadata.update(train_rows=int((~held_out).sum()), base_loss=round(loss.item(), 4))


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["torch>=2.5", "transformers>=4.57,<6", "peft>=0.17"])
def compare_adapter(adapter: Input[Model], base: Input[Dataset], metrics: Output[Metrics]) -> float:
    """Measures the base model with and without its adapter on the text that was held out.

    Args:
        adapter: A folder with the adapter, in the format of peft.
        base: What prepare_base has made.
        metrics: The perplexity per byte of both.

    Returns:
        The perplexity of the base model divided by that of the tuned one; above 1 is better.
    """
    import math
    import os

    import torch
    from peft import PeftModel
    from transformers import GPT2LMHeadModel

    rows = torch.load(os.path.join(base.path, "rows.pt"))["test"]

    def perplexity(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return math.exp(model(input_ids=rows, labels=rows).loss.item())

    model = GPT2LMHeadModel.from_pretrained(os.path.join(base.path, "model")).eval()
    before = perplexity(model)
    after = perplexity(PeftModel.from_pretrained(model, adapter.path).eval())
    metrics.log_metric("perplexity_base", before)
    metrics.log_metric("perplexity_tuned", after)
    return before / after
