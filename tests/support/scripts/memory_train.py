"""Trains on devices with little memory: a micro-batch that is too large raises an out-of-memory error.

Its one argument is a JSON object: ``folder``; ``fits``, samples that fit, by member (``""`` for all others; no limit
where it is missing); ``where`` the error comes: ``forward``, ``backward`` or ``second`` (the second of two
`job.backward`); ``since`` which step; ``guarded``, whether by `job.micro_batch`;
``wide``, whether the gradient is reduced in several pieces; ``m``, the largest micro-batch; ``stop``, a file at whose
sight it ends after an epoch, instead of after `EPOCHS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

SAMPLES, BATCH, FEATURES, EPOCHS, SEED = 97, 24, 6, 3, 7
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=GENERATOR)
Y = torch.randn(SAMPLES, 1, dtype=torch.float64, generator=GENERATOR)


class Narrow(torch.autograd.Function):
    """Raises an out-of-memory error in one of the two passes, for more rows than fit."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fits: int, where: str) -> torch.Tensor:
        ctx.fits, ctx.where = fits, where
        if where == "forward" and len(x) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.where != "forward" and len(grads[0]) > ctx.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return grads[0], None, None


def build(options: dict[str, Any]) -> nn.Sequential:
    torch.manual_seed(2)
    width = 1100 if options.get("wide") else 16
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    ).double()


def losses(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, fits: int, where: str) -> list[torch.Tensor]:
    """Returns the loss, or two that are added up."""
    first = [] if where == "second" else [Narrow.apply(model[:-3](x), fits, where)]
    found = [functional.mse_loss(model[-3:](first[0] if first else model[:-3](x)), y)]
    if where == "second":
        found.append(Narrow.apply(model(x), fits, where).square().mean())
    return found


def main() -> None:
    options = json.loads(sys.argv[1])
    folder, where = Path(options["folder"]), options.get("where", "backward")
    job = elastic.init(BATCH, options.get("m", BATCH))
    model = build(options)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    member = os.environ.get("ELASTIC_MEMBER", "")
    limits, stop = options["fits"], options.get("stop")
    with open(folder / f"sizes-{member}.txt", "a", buffering=1) as sizes:
        for _ in job.epochs(EPOCHS if stop is None else 100_000):
            for x, y in loader:
                fits = limits.get(member, limits.get("", SAMPLES))
                if (job.step if job.rank is not None else -1) < options.get("since", -1):
                    fits = SAMPLES
                with job.micro_batch() if options.get("guarded") else contextlib.nullcontext():
                    for loss in losses(model, x, y, fits, where):
                        job.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if job.samples and job.rank is not None:
                    sizes.write(f"{job.step} {len(x)}\n")
            if stop is not None and os.path.exists(stop):
                job.stop()
    if job.is_main:
        torch.save({"model": model.state_dict(), "step": job.step}, folder / "model.pt")


if __name__ == "__main__":
    main()
