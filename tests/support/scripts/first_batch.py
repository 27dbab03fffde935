"""A training whose first batch decides a mean, and notes that as a boolean; each rank writes what it came to.

Its first argument is the folder for that, the second one what is decided: ``buffer``, or ``parameter`` for a mean that
is a parameter, as published layers have it, or ``weights`` for a parameter that follows from the weights alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

STEPS, BATCH, FEATURES = 4, 8, 3
DATA = torch.randn(STEPS * BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class FirstBatch(nn.Module):
    """The loss of a linear layer behind a shift, which comes into effect after the first batch."""

    begun: torch.Tensor
    mean: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES, dtype=torch.float64))
        self.register_buffer("begun", torch.tensor(False))
        mean = torch.zeros(FEATURES, dtype=torch.float64)
        if kind == "buffer":
            self.register_buffer("mean", mean)
        else:
            self.register_parameter("mean", nn.Parameter(mean))
        self.by_weights = kind == "weights"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = ((x - self.mean) @ self.weight).square().mean()
        if not self.begun:
            self.mean.data.copy_(self.weight.detach() / 4 if self.by_weights else x.mean(0))
            self.begun.fill_(True)
        return found


def make(kind: str) -> tuple[FirstBatch, torch.optim.Optimizer]:
    """Makes the model and its optimizer."""
    model = FirstBatch(kind)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def main() -> None:
    job = elastic.init(BATCH, BATCH)
    model, optimizer = job.prepare(*make(sys.argv[2]))
    for _ in job.epochs(1):
        for (x,) in job.dataloader(TensorDataset(DATA)):
            job.backward(model(x))
            optimizer.step()
    torch.save(model.state_dict(), Path(sys.argv[1], f"{job.world_size}-{job.rank}.pt"))


if __name__ == "__main__":
    main()
