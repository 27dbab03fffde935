"""Trains in loops of its own, without `job.epochs`, and evaluates after each of them, until a file "stop" is there."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

OPTIONS = {"loops": 12, "pace": 0.0, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])


def main() -> None:
    job = elastic.init(12, 12)
    torch.manual_seed(3)
    x = torch.randn(48, 6, dtype=torch.float64)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = nn.Linear(6, 1).double()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader, test = job.dataloader(data, shuffle=True, seed=7), job.dataloader(data)
    scores = []
    for _ in range(OPTIONS["loops"]):
        for x, y in loader:
            time.sleep(OPTIONS["pace"])
            job.backward(functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        sums = job.evaluate(lambda x, y: {"loss": functional.mse_loss(model(x), y, reduction="sum")}, test)
        scores.append(sums["loss"])
        if job.reduce(float((FOLDER / "stop").exists()), op="max"):
            break
    ended = {"scores": scores, "step": job.step, "model": [p.tolist() for p in model.parameters()]}
    (FOLDER / f"ended-{os.environ.get('ELASTIC_MEMBER', 0)}.json").write_text(json.dumps(ended))


main()
