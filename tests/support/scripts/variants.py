"""Trains in one of several ways, each with its plain reference beside it; a test kills a rank meanwhile.

Its one argument is a JSON object: ``folder``, ``kind`` (see `KINDS`), ``epochs``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

SAMPLES, BATCH, FEATURES, SEED = 97, 24, 6, 7
MICRO = {"gan": BATCH, "reduce": BATCH}  # alternating optimizers are exact with one micro-batch
PACE = 0.02  # seconds that a micro-batch takes at least
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=GENERATOR)
Y = torch.randint(0, 3, (SAMPLES,), generator=GENERATOR)


class Trained:
    """What is trained, and how one micro-batch of it is."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.things: list[object] = [self.model, self.optimizer]

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        backward(functional.cross_entropy(self.model(x), y))
        self.optimizer.step()
        self.optimizer.zero_grad()


class Scaled(Trained):
    """With a GradScaler, whose scale grows on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
        self.things.append(self.scaler)

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        backward(self.scaler.scale(functional.cross_entropy(self.model(x), y)))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Adversaries(Trained):
    """Two models and two optimizers, which step one after the other: each step reduces twice."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, FEATURES)).double()
        self.second = torch.optim.Adam(self.other.parameters(), lr=0.01)
        self.things += [self.other, self.second]

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        made = self.other(x)
        loss = functional.cross_entropy(self.model(x), y) - functional.cross_entropy(self.model(made.detach()), y)
        backward(loss, optimizer=self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        backward(functional.cross_entropy(self.model(made), y), optimizer=self.second)
        self.second.step()
        self.second.zero_grad()


class ScaledAdversaries(Adversaries):
    """With a GradScaler too: the first one's gradient is unscaled before the second reduction, and used after it."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
        self.things.append(self.scaler)

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        made = self.other(x)
        loss = functional.cross_entropy(self.model(x), y) - functional.cross_entropy(self.model(made.detach()), y)
        backward(self.scaler.scale(loss), optimizer=self.optimizer)
        self.scaler.unscale_(self.optimizer)
        backward(self.scaler.scale(functional.cross_entropy(self.model(made), y)), optimizer=self.second)
        self.scaler.unscale_(self.second)
        self.scaler.step(self.optimizer)
        self.scaler.step(self.second)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.second.zero_grad()


class Turns(Trained):
    """With two optimizers for one loss, of which the second one steps after another backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.Adam(self.model[0].parameters(), lr=0.01)
        self.second = torch.optim.Adam(self.model[2].parameters(), lr=0.01)
        self.things = [self.model, self.optimizer, self.second]

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        backward(functional.cross_entropy(self.model(x), y))
        self.optimizer.step()
        self.optimizer.zero_grad()
        backward(self.model[2].weight.square().mean())
        self.second.step()
        self.second.zero_grad()
        self.optimizer.zero_grad()


class Sum(Trained):
    """With two losses, each with a backward pass of its own: a step reduces twice, and the gradients add up."""

    def micro_batch(self, x: torch.Tensor, y: torch.Tensor, backward: Callable[..., None]) -> None:
        backward(functional.cross_entropy(self.model(x), y))
        backward(self.model(x).square().mean())
        self.optimizer.step()
        self.optimizer.zero_grad()


class Dropped(Trained):
    """With batch norm and dropout, which depend on how a step is divided among ranks."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)),
            nn.Conv1d(1, 4, 2, bias=False),  # over a length, so that one sample is enough for a rank
            nn.BatchNorm1d(4),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(4 * (FEATURES - 1), 3),
        ).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.things = [self.model, self.optimizer]


KINDS: dict[str, type[Trained]] = {
    "scaler": Scaled,
    "gan": Adversaries,
    "scaled gan": ScaledAdversaries,
    "turns": Turns,
    "sum": Sum,
    "dropout": Dropped,
    "reduce": Trained,
}


def main() -> None:
    options = json.loads(sys.argv[1])
    folder, kind = Path(options["folder"]), options["kind"]
    job = elastic.init(BATCH, MICRO.get(kind, 5))
    trained = KINDS[kind]()
    job.prepare(*trained.things)
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    for _ in job.epochs(options["epochs"]):
        for x, y in loader:
            time.sleep(PACE)
            trained.micro_batch(x, y, job.backward)
            if kind == "reduce" and job.sync_gradients:
                row = [job.step, job.reduce(1.0, op="sum"), job.reduce({"step": job.step, "max": 1.0})["step"]]
                with open(folder / f"reduced-{job.local_rank}-{time.time_ns()}.json", "w") as file:
                    json.dump(row, file)
    if job.is_main:
        torch.save({f"model {n}": one.state_dict() for n, one in enumerate(models(trained))}, folder / "model.pt")


def models(trained: Trained) -> list[nn.Module]:
    return [one for one in trained.things if isinstance(one, nn.Module)]


if __name__ == "__main__":
    main()
