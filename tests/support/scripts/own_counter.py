"""Trains one model in each step and another one in some, by what its argument says."""

from __future__ import annotations

import itertools
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

by, every = sys.argv[1], int(sys.argv[2])
job = elastic.init(4, 4)
often, seldom = nn.Linear(3, 1), nn.Linear(3, 1)
first, second = torch.optim.SGD(often.parameters(), lr=0.1), torch.optim.SGD(seldom.parameters(), lr=0.1)
often, seldom, first, second = job.prepare(often, seldom, first, second)
loader = job.dataloader(TensorDataset(torch.ones(24, 3)))
steps = 0


def wrapped(batches):
    """Passes them on, as a progress bar does."""
    yield from batches


numbered = enumerate(wrapped(loader) if by == "wrapped" else loader)
if by == "counter":
    numbered = zip(itertools.count(), loader, strict=False)
for number, (x,) in numbered:
    turn = {"step": job.step % every == 0, "samples": len(x) > 2}.get(by, number % every == 0)
    job.backward(often(x).square().mean(), optimizer=first)
    first.step()
    first.zero_grad()
    if turn:
        job.backward(seldom(x).square().mean(), optimizer=second)
        second.step()
        second.zero_grad()
        steps += job.sync_gradients
print("turns", steps)
