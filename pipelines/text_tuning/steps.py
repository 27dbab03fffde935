"""The steps around the fine-tuning: texts and a base model before it, the verdict on the tuned model after it."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output

BASE_IMAGE = "python:3.11"


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["torch>=2.5", "numpy>=1.26"])
def prepare(texts: Output[Dataset], base_steps: int = 60, longest: int = 96, seed: int = 7):
    """Makes texts of very different lengths of Python's own help pages, and a base model that knows some English.

    Args:
        texts: A torch file: `train` and `test` (lines of the pages about statements, as tokens), `base` (weights).
        base_steps: Optimizer steps of the base model, which sees the other pages.
        longest: Tokens of the longest line.
        seed: Seed of the split and of the base model.
    """
    import pydoc_data.topics

    import torch
    from torch import nn
    from torch.nn import functional as F

    def lines_of(about: bool) -> list:
        pages = [page for name, page in sorted(pydoc_data.topics.topics.items()) if (name in TUNED) is about]
        lines = [line.strip() for page in pages for line in page.splitlines()]
        return [torch.tensor(list(line.encode()[:longest]), dtype=torch.uint8) for line in lines if len(line) > 8]

    TUNED = {"if", "for", "while", "with", "try", "function", "class", "import", "assignment", "compound"}
    torch.manual_seed(seed)
    tuned, general = lines_of(True), lines_of(False)
    order = torch.randperm(len(tuned)).tolist()
    cut = len(tuned) // 5
    embedding, unit, head = nn.Embedding(256, 32), nn.GRU(32, 96, batch_first=True), nn.Linear(96, 256)
    model = nn.ModuleDict({"embedding": embedding, "unit": unit, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(base_steps):
        chosen = [general[(32 * step + number) % len(general)].long() for number in range(32)]
        batch = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        scores = head(unit(embedding(batch[:, :-1]))[0])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    made = {"train": [tuned[one] for one in order[cut:]], "test": [tuned[one] for one in order[:cut]]}
    torch.save({**made, "base": model.state_dict()}, texts.path)
    texts.metadata.update(train_lines=len(made["train"]), test_lines=cut, base_loss=round(loss.item(), 4))


@dsl.component(base_image=BASE_IMAGE, packages_to_install=["torch>=2.5", "numpy>=1.26"])
def compare(model: Input[Model], texts: Input[Dataset], metrics: Output[Metrics]) -> float:
    """Measures base model and tuned model on the test lines.

    Args:
        model: The tuned weights.
        texts: What prepare has made.
        metrics: The perplexity of a token under both.

    Returns:
        By how much less a token surprises the tuned model, as a ratio of perplexities: above 1 is better.
    """
    import math

    import torch
    from torch import nn
    from torch.nn import functional as F

    made = torch.load(texts.path)
    network = nn.ModuleDict(
        {"embedding": nn.Embedding(256, 32), "unit": nn.GRU(32, 96, batch_first=True), "head": nn.Linear(96, 256)}
    )

    def perplexity(weights: dict) -> float:
        network.load_state_dict(weights)
        lost, tokens = 0.0, 0
        with torch.no_grad():
            for line in made["test"]:
                line = line.long().unsqueeze(0)
                scores = network["head"](network["unit"](network["embedding"](line[:, :-1]))[0])
                lost += F.cross_entropy(scores[0], line[0, 1:], reduction="sum").item()
                tokens += line.shape[1] - 1
        return math.exp(lost / tokens)

    base, tuned = perplexity(made["base"]), perplexity(torch.load(model.path))
    metrics.log_metric("perplexity_base", base)
    metrics.log_metric("perplexity_tuned", tuned)
    return base / tuned
