"""Trains a line for 100 steps: nearly all of its time is that of starting and ending."""

from __future__ import annotations

import os

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=32, max_batch_per_gpu=32)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = job.prepare(model, optimizer)
inputs = torch.arange(6400.0).reshape(800, 8) / 6400
loader = job.dataloader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), shuffle=True, seed=7)
for _ in job.epochs(4):
    for x, y in loader:
        job.backward(functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
if job.is_main:
    torch.save(model.state_dict(), os.environ["ELASTIC_OUTPUT"])
