"""Leaves its loop after the first batch, and then ends, or does what its argument says."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

job = elastic.init(4, 4)
model = nn.Linear(3, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.dataloader(TensorDataset(torch.ones(16, 3)))
for (x,) in loader:
    job.backward(model(x).square().mean())
    optimizer.step()
    if sys.argv[1] != "complete" or job.sync_gradients:
        break
if sys.argv[1] == "reduce":
    job.reduce(1.0)
