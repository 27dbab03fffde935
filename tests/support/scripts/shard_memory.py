"""Trains a model that is made in parts; each rank then writes into a folder how its memory has grown."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

LAYERS, WIDTH = 32, 1024
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 4


def largest_memory() -> int:
    """Returns how many bytes of memory this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Trains."""
    folder = Path(sys.argv[1])
    elastic.init_node_group("gloo")
    job = elastic.init(8, 1)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    before = largest_memory()
    model.to_empty(device="cpu")
    torch.manual_seed(job.local_rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=WIDTH**-0.5)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = job.dataloader(TensorDataset(torch.ones(32, WIDTH)))
    for _ in job.epochs(2):
        for (values,) in loader:
            optimizer.zero_grad()
            job.backward(model(values).square().mean())
            optimizer.step()
    (folder / f"rank-{job.rank}").write_text(str(largest_memory() - before))


if __name__ == "__main__":
    main()
