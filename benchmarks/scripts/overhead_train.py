"""Trains one model twice in the same processes, in alternating blocks of steps: with a job, and with hand-written DDP.

It writes its times after each pair of blocks, and ends once there is a file ``enough`` beside them.

Arguments: model (small or large), accumulation, file for the times, which side stands in for ours (job or ddp), world
size.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

MODEL, ACCUMULATION, OUT, SIDE, WORLD = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
BLOCK_STEPS, WARM_BLOCKS = 10, 3
FEATURES = 64 if MODEL == "small" else 1024
MICRO = 64 if MODEL == "small" else 32
BATCH = MICRO * ACCUMULATION * WORLD


def build() -> nn.Module:
    """Many small tensors (200 layers of 64x64, 400 tensors), or few large ones (three of 4 MB to 8 MB)."""
    torch.manual_seed(0)
    if MODEL == "small":
        return nn.Sequential(*[nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()) for _ in range(200)])
    return nn.Sequential(
        nn.Linear(1024, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, FEATURES, generator=generator), torch.randint(0, 10, (samples,), generator=generator)


class Peer:
    """Hand-written DDP at its best valid settings; its own process group, as a script without a launcher has it."""

    def __init__(self, rank: int, x: torch.Tensor, y: torch.Tensor) -> None:
        store = dist.FileStore(str(OUT) + f".store{ACCUMULATION}", WORLD)
        if not dist.is_initialized():
            backend = "nccl" if x.is_cuda else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=WORLD)
        self.model = DistributedDataParallel(
            build().to(x.device), gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        self.x, self.y, self.rank, self.at, self.fresh = x, y, rank, 0, True
        self.order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))

    def step(self) -> None:
        """Does one optimizer step."""
        for part in range(ACCUMULATION):
            if self.at + BATCH > len(self.x):
                self.at = 0
            start = self.at + (self.rank * ACCUMULATION + part) * MICRO
            chosen = self.order[start : start + MICRO]
            last = part == ACCUMULATION - 1 or self.fresh  # a static graph is learned in a step that is reduced
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = functional.cross_entropy(self.model(self.x[chosen]), self.y[chosen]) / ACCUMULATION
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.at, self.fresh = self.at + BATCH, False


def seconds_since(start: float) -> float:
    """Returns the time until all that was begun is done, on a GPU too."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def write(times: list[tuple[float, float]]) -> None:
    rows = {"ours": [a / BLOCK_STEPS for a, _ in times], "peer": [b / BLOCK_STEPS for _, b in times]}
    with tempfile.NamedTemporaryFile("w", dir=OUT.parent, delete=False) as file:
        json.dump({**rows, "threads": torch.get_num_threads()}, file)
    os.replace(file.name, OUT)


def main() -> None:
    job = elastic.init(BATCH, MICRO)
    x, y = (tensor.to(job.device) for tensor in data(BATCH * 64))
    model = build().to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    model, optimizer = job.prepare(model, optimizer)
    loader = job.dataloader(TensorDataset(x, y), shuffle=True, seed=7)
    peer = other = None
    times: list[tuple[float, float]] = []
    done = 0
    began = 0.0

    def timed(which: Peer) -> float:
        start = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            which.step()
        return seconds_since(start)

    for _ in job.epochs(1_000_000):
        for bx, by in loader:
            loss = functional.cross_entropy(model(bx), by)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if not job.sync_gradients:
                continue
            if peer is None:
                peer = Peer(job.rank, x, y)
                other = copy.copy(peer) if SIDE == "job" else Peer(job.rank, x, y)
            done += 1
            if done % BLOCK_STEPS:
                continue
            ours = seconds_since(began) if SIDE == "job" else timed(other)
            theirs = timed(peer)
            if began and done > WARM_BLOCKS * BLOCK_STEPS:
                times.append((ours, theirs))
                if job.is_main:
                    write(times)
                if OUT.with_name("enough").exists():
                    job.stop("measured")
            began = time.perf_counter()


if __name__ == "__main__":
    main()
