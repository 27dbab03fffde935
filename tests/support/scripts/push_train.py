"""Trains step by step, as an adapter for a framework does, until a file ``stop`` is there.

Arguments: JSON of folder, foreign (whether the optimizer is one in shape only), start (where to start, epoch and step),
gather (whether each step and epoch gathers which samples it had, and compares them), decay (whether the script halves a
metric after each step, and counts steps in a buffer, and looks at another metric after each epoch).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic
from elastic_launcher.sampling import indices

SAMPLES, BATCH, MICRO, SEED = 101, 24, 5, 7
X = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
Y = X.sum(1, keepdim=True).sin()


class Momentum:
    """An optimizer that is none of torch's, with state of its own."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.count = 0
        self.moments = [torch.zeros_like(p) for p in parameters]

    def apply(self, gradients: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        """Steps."""
        self.count += 1
        for moment, gradient, parameter in zip(self.moments, gradients, parameters, strict=True):
            moment.mul_(0.9).add_(gradient)
            parameter.sub_(moment, alpha=0.1 / (1 + 0.01 * self.count))

    def state_dict(self) -> dict[str, Any]:
        """Returns all of it."""
        return {"count": self.count, "moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it."""
        self.count = state["count"]
        for mine, theirs in zip(self.moments, state["moments"], strict=True):
            mine.copy_(theirs)


class InShape(torch.optim.Optimizer):
    """An optimizer of torch in shape only: the other one steps."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.foreign = Momentum(parameters)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Has the other one step."""
        parameters = self.param_groups[0]["params"]
        self.foreign.apply([p.grad for p in parameters], parameters)


def build(foreign: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns model and optimizer as they are before the first step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    model.register_buffer("passed", torch.zeros((), dtype=torch.int64))
    model.register_buffer("fading", torch.ones((), dtype=torch.float64))
    parameters = list(model.parameters())
    return model, InShape(parameters) if foreign else torch.optim.Adam(parameters, lr=0.01)


class Metrics:
    """What is kept of the samples of an epoch: tensors that a forward pass changes, two of them by making new ones."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins an epoch."""
        self.total, self.count = torch.zeros((), dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        self.most = torch.full((), float("-inf"), dtype=torch.float64)

    def update(self, x: torch.Tensor) -> None:
        """Takes samples."""
        self.total = self.total + x.sum()
        self.count += len(x)
        self.most = torch.maximum(self.most, x.max())

    def values(self) -> dict[str, torch.Tensor]:
        """Returns them by name."""
        return {"total": self.total, "count": self.count, "most": self.most}


def fade(model: nn.Module, metrics: Metrics) -> None:
    """Changes what is kept, after a step."""
    metrics.total = metrics.total / 2
    model.passed += 1
    model.fading *= 0.99


def main() -> None:
    """Trains."""
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    job = elastic.init(BATCH, MICRO)
    model, optimizer = build(options.get("foreign", False))
    if "start" in options:  # with what a framework has saved in a file of its own
        saved = torch.load(folder / "start.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        job.start_at(*options["start"])
    model, optimizer = job.prepare(model, optimizer)
    if isinstance(optimizer, InShape):
        job.register("foreign", optimizer.foreign)
    loader = job.dataloader(TensorDataset(X, Y, torch.arange(SAMPLES)), shuffle=True, seed=SEED)
    metrics = Metrics()
    job.track(lambda: {"total": metrics.total, "count": metrics.count}, op="sum")
    job.track(lambda: [metrics.most], op="max")

    rows: list[torch.Tensor] = []

    def work(batch: Any) -> None:
        x, y, numbers = batch
        if job.micro is not None and job.micro.first:
            rows.clear()
        rows.append(numbers[: job.samples])
        metrics.update(x)
        job.backward(functional.mse_loss(model(x), y))

    stop = folder / "stop"
    for _ in job.epochs(100_000):
        metrics.reset()
        while job.run_step(loader, work):
            if options.get("gather"):
                start = (job.step_in_epoch - 1) * BATCH
                found = job.gather(torch.cat(rows))
                wanted = indices(SAMPLES, SEED, job.epoch, start, min(start + BATCH, SAMPLES), True)
                assert not job.sync_gradients or found.tolist() == wanted.tolist(), (found, wanted)
            optimizer.step()
            if options.get("decay"):
                fade(model, metrics)
            time.sleep(0.01)
            if stop.exists() and job.step_in_epoch < loader.steps_per_epoch:
                job.stop()  # not at an epoch's end: a rank that learns of it from others has begun the next one
        if options.get("decay"):
            assert job.over or int(metrics.count) == SAMPLES, (job.step, metrics.count)
        if options.get("gather"):
            found = job.gather(lambda x, y, numbers: {"x": x, "numbers": numbers}, loader)
            assert torch.equal(found["numbers"], torch.arange(SAMPLES)) and torch.equal(found["x"], X)
    if job.is_main:
        end = {"steps": job.step, "model": model.state_dict(), "metrics": metrics.values()}
        torch.save(end, folder / "end.pt")


if __name__ == "__main__":
    main()
