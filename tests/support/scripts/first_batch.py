"""A training whose first batch decides a mean, and notes that as a boolean; each rank writes what it came to.

Its first argument is the folder for that. With ``parameter`` as a second one, the mean is a parameter, as published
layers have it.
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

    def __init__(self, parameter: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES, dtype=torch.float64))
        self.register_buffer("begun", torch.tensor(False))
        mean = torch.zeros(FEATURES, dtype=torch.float64)
        if parameter:
            self.register_parameter("mean", nn.Parameter(mean))
        else:
            self.register_buffer("mean", mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = ((x - self.mean) @ self.weight).square().mean()
        if not self.begun:
            self.mean.data.copy_(x.mean(0))
            self.begun.fill_(True)
        return found


def make(parameter: bool = False) -> tuple[FirstBatch, torch.optim.Optimizer]:
    """Makes the model and its optimizer."""
    model = FirstBatch(parameter)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def main() -> None:
    job = elastic.init(BATCH, BATCH)
    model, optimizer = job.prepare(*make(sys.argv[2:] == ["parameter"]))
    for _ in job.epochs(1):
        for (x,) in job.dataloader(TensorDataset(DATA)):
            job.backward(model(x))
            optimizer.step()
    torch.save(model.state_dict(), Path(sys.argv[1], f"{job.world_size}-{job.rank}.pt"))


if __name__ == "__main__":
    main()
