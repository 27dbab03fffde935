"""Trains in two phases, as fine-tuning does: in each epoch two data sets one after the other, in the second phase with
an optimizer of its own. An evaluation follows each phase.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

OPTIONS = {"pace": 0.0, "epochs": [2, 100_000], "stop_at": -1, "per_epoch": False, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])


def main() -> None:
    job = elastic.init(12, 5)
    torch.manual_seed(3)
    x = torch.randn(96, 6, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    first, second = TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])
    loaders = [job.dataloader(first, shuffle=True, seed=7), job.dataloader(second, shuffle=True, seed=8)]

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) + extra(x) - y).square().mean()

    scores = []
    for phase, epochs in enumerate(OPTIONS["epochs"]):
        extra = nn.Linear(6, 1).double()  # made again in each phase, as the models of k-fold are
        made = torch.optim.SGD(model[2].parameters(), lr=0.05) if phase == 0 else torch.optim.Adam(model.parameters())
        made.add_param_group({"params": list(extra.parameters())})
        prepared = (model, extra, made) if phase == 0 else (extra, made)
        optimizer = job.prepare(*prepared)[-1]
        for epoch in job.epochs(epochs):
            if OPTIONS["per_epoch"]:
                part = TensorDataset(x[: 60 - epoch % 3], y[: 60 - epoch % 3])
                loaders[0] = job.dataloader(part, shuffle=True, seed=7)
            for loader in loaders:
                for batch in loader:
                    time.sleep(OPTIONS["pace"])
                    job.backward(loss(*batch), optimizer=optimizer)
                    optimizer.step()
                    optimizer.zero_grad()
                    if not job.sync_gradients:
                        continue
                    if job.step == OPTIONS["stop_at"] or (job.is_main and (FOLDER / "stop").exists()):
                        job.stop("the test has seen enough")
        sums = job.evaluate(lambda x, y: {"loss": loss(x, y) * len(x)}, loaders[1])
        scores.append(sums["loss"])
    ended = {
        "scores": scores,
        "step": job.step,
        "model": [p.tolist() for p in (*model.parameters(), *extra.parameters())],
    }
    (FOLDER / f"ended-{os.environ.get('ELASTIC_MEMBER', 0)}.json").write_text(json.dumps(ended))


main()
