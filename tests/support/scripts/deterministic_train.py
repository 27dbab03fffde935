"""A training in 32 bits with batch norm and dropout, on virtual ranks; it writes a digest of its state for each step.

Its one argument is a JSON object: ``folder`` for what it writes, ``steps`` after which it stops, ``pace`` in seconds a
micro-batch, ``workers`` of the loader, ``virtual`` ranks, ``half`` for forward passes in bfloat16, ``lanes`` for data
that is read forward, ``calls`` for `job.run_step`. The environment's VIRTUAL goes before ``virtual``. A file "stop"
stops it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

KEYS = {
    "folder": ".",
    "steps": 10**6,
    "pace": 0.0,
    "workers": 0,
    "virtual": 4,
    "half": False,
    "lanes": False,
    "calls": False,
}
OPTIONS = {**KEYS, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])
LENGTHS = (25, 18, 19)
SAMPLES = sum(LENGTHS)
DRAWS = torch.Generator().manual_seed(1)
DATA = TensorDataset(torch.randn(SAMPLES, 8, generator=DRAWS), torch.randint(0, 3, (SAMPLES,), generator=DRAWS))


def digest(*states: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for state in states:
        for name, tensor in sorted(state.items()):
            found.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read(lane: int, epoch: int, start: int) -> Iterator[int]:
    return iter(range(sum(LENGTHS[:lane]) + start, sum(LENGTHS[: lane + 1])))


def decode(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = DATA[number]
    return x + 0.01 * torch.randn(8), y


class Turns(nn.Module):
    """Subtracts the mean of the first batch, and doubles in every other pass of a step: it keeps that as booleans."""

    begun: torch.Tensor
    turn: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("begun", torch.tensor(False))
        self.register_buffer("turn", torch.tensor(True))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.begun:
            self.mean.copy_(x.mean(0))
            self.begun.fill_(True)
        if self.training:
            self.turn.logical_not_()
        return (x - self.mean) * (1 + self.turn)


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
        Turns(),
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 16, 3, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(96, 3),
    ).to(job.device)
    model, optimizer = job.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    drawn = Drawn()
    job.register("drawn", drawn)
    source = elastic.lanes(read, lanes=3, lengths=LENGTHS, decode=decode, shuffle_block=8) if OPTIONS["lanes"] else DATA
    loader = job.dataloader(source, shuffle=True, seed=7, num_workers=OPTIONS["workers"])
    others = job.dataloader(DATA)

    def loss_of(x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        with torch.autocast(job.device.type, torch.bfloat16, enabled=OPTIONS["half"]):
            out = model(x)
        return functional.cross_entropy(out.float(), y, reduction=reduction)

    def evaluate() -> float:
        model.eval()
        sums = job.evaluate(lambda x, y: {"loss": loss_of(x, y, "sum")}, others)
        model.train()
        return float(sums["loss"])

    with open(FOLDER / f"ledger-{os.getpid()}.jsonl", "w") as ledger:

        def work(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
            time.sleep(OPTIONS["pace"])
            job.backward(loss_of(*batch) * drawn.value)

        def end() -> None:
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

        for _ in job.epochs(10**6):
            if OPTIONS["calls"]:
                while job.run_step(loader, work):
                    end()
            else:
                for batch in loader:
                    work(batch)
                    end()
            if not job.over:
                found = evaluate()
                ledger.write(json.dumps({"step": job.step, "evaluated": found}) + "\n")
                ledger.flush()


main()
