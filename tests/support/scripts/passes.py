"""Trains with an optimizer that makes two passes in a step; its argument is the largest micro-batch."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic


class SharpnessAware(torch.optim.SGD):
    @torch.no_grad()
    def first_step(self) -> None:
        self._move(0.1)

    @torch.no_grad()
    def second_step(self) -> None:
        self._move(-0.1)

    def _move(self, by: float) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(by)


def main() -> None:
    job = elastic.init(8, int(sys.argv[1]))
    model: Any = nn.Linear(3, 1)
    optimizer = SharpnessAware(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    for _ in job.epochs(2):
        for (x,) in job.dataloader(TensorDataset(torch.ones(16, 3))):
            job.backward(model(x).square().mean())
            optimizer.first_step()
            job.backward(model(x).square().mean())
            optimizer.second_step()


main()
