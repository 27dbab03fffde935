"""Trains a few large layers, and prints the median time of a step, and of rank 0's CPU in it: ``bitwise_train.py STEPS
VIRTUAL_RANKS``, or 0.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

WARM_UP, WIDTH, BATCH, MICRO = 5, 1024, 48, 8


def main() -> None:
    """Trains."""
    steps, virtual_ranks = map(int, sys.argv[1:])
    job = elastic.init(BATCH, MICRO, deterministic=virtual_ranks or None)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    model, optimizer = job.prepare(model, torch.optim.AdamW(model.parameters()))
    data = TensorDataset(torch.randn(BATCH * (WARM_UP + steps + 1), WIDTH))
    times = []
    for (x,) in job.dataloader(data):
        job.backward(functional.mse_loss(model(x), x))
        optimizer.step()
        optimizer.zero_grad()
        if job.sync_gradients:
            times.append((time.perf_counter(), time.process_time()))
    if job.is_main:
        for clock in zip(*times[WARM_UP:], strict=True):
            print(statistics.median(after - before for before, after in pairwise(clock)))


main()
