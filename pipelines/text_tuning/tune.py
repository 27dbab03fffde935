"""Fine-tunes the base model on lines of very different lengths; each token weighs the same, whoever works on it.

A mean over the tokens of a micro-batch is given to ``job.backward`` with their number as its weight. So the gradient is
that of the mean over all tokens of the global batch, however its lines are divided.
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import elastic_launcher.torch as elastic

PADDING = 0


class Lines(Dataset):
    """Lines as tokens, of any length."""

    def __init__(self, lines: list[torch.Tensor]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._lines[index].long()


def collate(lines: list[torch.Tensor]) -> torch.Tensor:
    """Returns lines as one batch, padded to the longest."""
    return pad_sequence(lines, batch_first=True, padding_value=PADDING)


def main() -> None:
    """Tunes, tests after each epoch, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    job = elastic.init()
    made = torch.load(os.environ["ELASTIC_DATA"])
    parts = {"embedding": nn.Embedding(256, 32), "unit": nn.GRU(32, 96, batch_first=True), "head": nn.Linear(96, 256)}
    model = nn.ModuleDict(parts)
    model.load_state_dict(made["base"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    loader = job.dataloader(Lines(made["train"]), shuffle=True, seed=7, collate_fn=collate)
    test_loader = job.dataloader(Lines(made["test"]), collate_fn=collate)
    model, optimizer = job.prepare(model, optimizer)

    def surprise(batch: torch.Tensor, reduction: str) -> torch.Tensor:
        scores = model["head"](model["unit"](model["embedding"](batch[:, :-1]))[0])
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=PADDING, reduction=reduction)

    def test(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"lost": surprise(batch, "sum"), "tokens": (batch[:, 1:] != PADDING).sum()}

    for _ in job.epochs(given.epochs):
        for batch in loader:
            tokens = int((batch[:, 1:] != PADDING).sum())
            job.backward(surprise(batch, "mean"), weight=tokens)
            optimizer.step()
            optimizer.zero_grad()
        sums = job.evaluate(test, test_loader)
        job.log({"test_loss_of_a_token": sums["lost"] / sums["tokens"]})

    if job.is_main:
        torch.save(model.state_dict(), os.environ.get("ELASTIC_OUTPUT", "tuned.pt"))


if __name__ == "__main__":
    main()
