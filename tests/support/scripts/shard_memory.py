"""Trains a model of which each rank only makes its part: with a job until a file ``stop`` is there, or by FSDP alone.

Each rank then writes how much more memory it has had at most than before the model. Arguments: job or fsdp, folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

LAYERS, WIDTH = 6, 2048
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 4
VALUES = torch.ones(32, WIDTH)


def memory(name: str) -> int:
    """Returns a line of what the system says of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def build(layers: int, width: int) -> nn.Module:
    """Returns the model, of which this process only ever has its own part."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    for module in (*model, model):
        fully_shard(module)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=width**-0.5)
    return model


def memory_before() -> int:
    """Returns this process's memory before the model, and has the most that it has counted from here.

    What FSDP imports only when it is used is in it.
    """
    model = build(1, 8)
    model(torch.ones(1, 8)).mean().backward()
    torch.optim.SGD(model.parameters()).step()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def train_job(folder: Path) -> int:
    """Trains with a job; returns this process's memory."""
    elastic.init_node_group("gloo")
    job = elastic.init(4, 1)
    before = memory_before()
    model = build(LAYERS, WIDTH)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = job.dataloader(TensorDataset(VALUES))
    for _ in job.epochs(10_000):
        for (values,) in loader:
            optimizer.zero_grad()
            job.backward(model(values).square().mean())
            optimizer.step()
            most = memory("VmHWM")
            if (folder / "stop").exists():
                job.stop("measured")
    return most - before


def train_alone() -> int:
    """Trains some steps with FSDP alone; returns this process's memory."""
    dist.init_process_group("gloo")
    before = memory_before()
    model = build(LAYERS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            model(VALUES[:1]).square().mean().backward()
        optimizer.step()
    most = memory("VmHWM")
    dist.destroy_process_group()
    return most - before


def main() -> None:
    """Trains, and writes."""
    side, folder = sys.argv[1], Path(sys.argv[2])
    grown = train_job(folder) if side == "job" else train_alone()
    (folder / f"{side}-{os.getpid()}").write_text(str(grown))


if __name__ == "__main__":
    main()
