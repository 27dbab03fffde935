"""A training in 32 bits with batch norm and dropout, on virtual ranks; it writes a digest of its state for each step.

Its one argument is a JSON object: ``folder`` for what it writes, ``steps`` after which it stops, ``pace`` in seconds a
micro-batch, ``workers`` of the loader, ``virtual`` ranks, ``half`` for forward passes in bfloat16. The environment's
VIRTUAL goes before ``virtual``. A file "stop" stops it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

KEYS = {"folder": ".", "steps": 10**6, "pace": 0.0, "workers": 0, "virtual": 4, "half": False}
OPTIONS = {**KEYS, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])
SAMPLES = 62


def digest(*states: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for state in states:
        for name, tensor in sorted(state.items()):
            found.update(name.encode() + tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Drawn:
    """A number that the script draws after a step, and uses in the next one."""

    def __init__(self) -> None:
        self.value = 1.0

    def state_dict(self) -> dict[str, float]:
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


def main() -> None:
    job = elastic.init(24, 4, seed=5, deterministic=int(os.environ.get("VIRTUAL", OPTIONS["virtual"])))
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 16, 3, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(96, 3),
    )
    draws = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=draws), torch.randint(0, 3, (SAMPLES,), generator=draws))
    model, optimizer = job.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    drawn = Drawn()
    job.register("drawn", drawn)
    loader = job.dataloader(data, shuffle=True, seed=7, num_workers=OPTIONS["workers"])

    def loss_of(x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=OPTIONS["half"]):
            out = model(x)
        return functional.cross_entropy(out.float(), y, reduction=reduction)

    def evaluate() -> float:
        model.eval()
        sums = job.evaluate(lambda x, y: {"loss": loss_of(x, y, "sum")}, loader)
        model.train()
        return float(sums["loss"])

    with open(FOLDER / f"ledger-{os.getpid()}.jsonl", "w") as ledger:
        for _ in job.epochs(10**6):
            for x, y in loader:
                time.sleep(OPTIONS["pace"])
                job.backward(loss_of(x, y) * drawn.value)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if job.sync_gradients:
                    drawn.value = 0.5 + random.random()
                    moments = {
                        f"{number}.{name}": value
                        for number, state in enumerate(optimizer.state.values())
                        for name, value in state.items()
                    }
                    row = {"step": job.step, "world_size": job.world_size, "loss": job.loss}
                    ledger.write(json.dumps({**row, "digest": digest(model.state_dict(), moments)}) + "\n")
                    ledger.flush()
                    if job.step >= OPTIONS["steps"] or (FOLDER / "stop").exists():
                        job.stop()
            if not job.over:
                found = evaluate()
                ledger.write(json.dumps({"step": job.step, "evaluated": found}) + "\n")
                ledger.flush()


main()
