"""Trains on data that is read forward, or drawn by weight, until a file ``stop`` is there.

Arguments: JSON of folder, source, micro, workers, shuffle. Each process writes a ledger, a line a micro-batch.
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
from typing import Any

import torch
from numbered import MEMBER, row_of
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import elastic_launcher.torch as elastic
from elastic_launcher.integrations.streams import parquet, webdataset

LENGTHS = (23, 31, 17, 30)
FIRSTS = tuple(itertools.accumulate(LENGTHS, initial=0))
SAMPLES = sum(LENGTHS)
WEIGHTS = [1.0 + number % 3 for number in range(SAMPLES)]
BATCH, SEED, BLOCK = 12, 7, 8
PACE = 0.01  # seconds that each micro-batch takes at least: processes that join need the machine too

Sample = tuple[int, torch.Tensor]


def sample(number: int, epoch: int) -> torch.Tensor:
    """Returns a sample without what is drawn for it."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, dtype=torch.float64, generator=generator) + 0.1 * (epoch % 10)


def read(lane: int, epoch: int, start: int) -> Iterator[tuple[int, int]]:
    """Reads a lane from its beginning, as a source does that can't be sought in."""
    whole = ((number, epoch) for number in range(FIRSTS[lane], FIRSTS[lane + 1]))
    return itertools.islice(whole, start, None)


def decode(found: tuple[int, int]) -> Sample:
    """Makes a sample of what a lane gives; it is another one in each epoch."""
    number, epoch = found
    return number, sample(number, epoch) + 0.01 * random.random()


class Numbered(Dataset[Sample]):
    """The same samples by index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Sample:
        return number, sample(number, 0)


def of_tar(found: dict[str, bytes]) -> Sample:
    """Makes a sample of the files of one in a tar file."""
    return int(found["cls"]), sample(int(found["cls"]), 0)


def of_row(row: dict[str, int]) -> Sample:
    """Makes a sample of a row of a Parquet file."""
    return row["number"], sample(row["number"], 0)


def source_of(options: dict[str, Any]) -> Any:
    """Returns what the loader reads."""
    files = sorted(Path(options["folder"]).glob("file-*"))
    urls = [f"file://{path}" for path in files]
    match options.get("source", "lanes"):
        case "lanes":
            return elastic.lanes(read, lanes=len(LENGTHS), lengths=LENGTHS, decode=decode, shuffle_block=BLOCK)
        case "weights":
            return Numbered()
        case "tar":
            counts = list(map(webdataset.count, urls))
            return webdataset.lanes(urls, lanes=3, counts=counts, decode=of_tar, seed=3, shuffle_block=BLOCK)
        case "parquet":
            return parquet.lanes(urls, lanes=3, decode=of_row, seed=3, shuffle_block=BLOCK)
        case other:
            raise ValueError(other)


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
    model, optimizer = build()
    model, optimizer = job.prepare(model.to(job.device), optimizer)
    order: dict[str, Any] = {"shuffle": options.get("shuffle", False)}
    if options.get("source") == "weights":
        order = {"weights": WEIGHTS}
    loader = job.dataloader(source_of(options), seed=SEED, num_workers=options.get("workers", 0), **order)
    with open(folder / f"ledger-{MEMBER}-{os.getpid()}.jsonl", "w", buffering=1) as ledger:
        for _ in job.epochs(100_000):
            for numbers, x in loader:
                time.sleep(PACE)
                row = row_of(job, numbers)
                ledger.write(json.dumps({"begun": True, **row}) + "\n")
                job.backward(loss_of(model, x))
                optimizer.step()
                optimizer.zero_grad()
                ledger.write(json.dumps(row | {"sync": job.sync_gradients}) + "\n")
                if job.sync_gradients and (folder / "stop").exists():
                    job.stop()
    if job.is_main:
        torch.save(model.state_dict(), folder / "model.pt")


if __name__ == "__main__":
    main()
