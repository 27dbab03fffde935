"""Trains on lanes that are read forward, until a file ``stop`` is there; each process writes down what it opened.

Arguments: JSON of folder, micro, workers, shuffle.
"""

from __future__ import annotations

import itertools
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

import elastic_launcher.torch as elastic

LENGTHS = (23, 31, 17, 30)
BATCH, SEED, BLOCK = 12, 7, 8


def sample(lane: int, epoch: int, place: int) -> torch.Tensor:
    """Returns a sample without what is drawn for it."""
    generator = torch.Generator().manual_seed(lane * 1000 + place)
    return torch.randn(3, dtype=torch.float64, generator=generator) + 0.1 * epoch % 1


def read(lane: int, epoch: int, start: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Reads a lane from its beginning, as a source does that can't be sought in."""

    def whole() -> Iterator[tuple[int, int, torch.Tensor]]:
        for place in range(LENGTHS[lane]):
            yield lane, place, sample(lane, epoch, place) + 0.01 * random.random()

    return itertools.islice(whole(), start, None)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns model and optimizer as they are before the first step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns the mean over samples."""
    return functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())


def main() -> None:
    """Trains."""
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    job = elastic.init(BATCH, options.get("micro", BATCH))
    model, optimizer = job.prepare(*build())
    stream = elastic.lanes(read, lanes=len(LENGTHS), lengths=LENGTHS, shuffle_block=BLOCK)
    loader = job.dataloader(
        stream, shuffle=options.get("shuffle", False), seed=SEED, num_workers=options.get("workers", 0)
    )
    stop = folder / "stop"
    rows: list[torch.Tensor] = []
    with (folder / f"steps-{os.getpid()}.jsonl").open("a") as ledger:
        for epoch in job.epochs(100_000):
            for lanes, places, x in loader:
                if job.micro.first:
                    rows.clear()
                rows.append(torch.stack([lanes, places], 1)[: job.samples])
                job.backward(loss_of(model, x))
                found = job.gather(torch.cat(rows)) if job.sync_gradients else None
                if job.sync_gradients:
                    optimizer.step()
                    row = {"step": job.step, "epoch": epoch, "size": job.world_size, "places": found.tolist()}
                    ledger.write(json.dumps(row) + "\n")
                    ledger.flush()
                    time.sleep(0.01)
                    if stop.exists():
                        job.stop()
                optimizer.zero_grad()
    if job.is_main:
        torch.save({"steps": job.step, "model": model.state_dict()}, folder / "end.pt")


if __name__ == "__main__":
    main()
