"""What `train.py` and `led_train.py` have in common: numbered samples, a small model in float64, rows of a ledger."""

from __future__ import annotations

import hashlib
import os
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import elastic_launcher.torch as elastic
from elastic_launcher.torch.shard.tensors import local

FEATURES = 6
MEMBER = int(os.environ.get("ELASTIC_MEMBER", "1"))


class Numbered(Dataset[tuple[int, torch.Tensor, int]]):
    """Samples that know their number.

    Args:
        samples: How many.
        augment: Whether something random is added to each.
    """

    def __init__(self, samples: int, augment: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, FEATURES, dtype=torch.float64, generator=generator)
        self.y = torch.randint(0, 3, (samples,), generator=generator).tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        x = self.x[index]
        if self.augment:
            x = x + random.random() + np.random.rand() + torch.rand((), dtype=torch.float64)
        return index, x, self.y[index]


def two_layers(width: int) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, 3)).double()


def optimizer_of(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 200))


def digest(optimizer: torch.optim.Optimizer) -> str:
    """Returns a digest of every bit of the parameters that this rank has, and of their optimizer."""
    found = hashlib.sha256()
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        for tensor in (parameter, *optimizer.state[parameter].values()):
            found.update(local(tensor).detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def row_of(job: elastic.Job, indices: torch.Tensor) -> dict[str, Any]:
    """Returns what a ledger has of a micro-batch that begins."""
    return {
        "member": MEMBER,
        "pid": os.getpid(),
        "rank": job.rank,
        "world_size": job.world_size,
        "generation": job.generation,
        "epoch": job.epoch,
        "step": job.step,
        "batch": job.global_batch_size,
        "samples": job.samples,
        "indices": indices.tolist(),
        "sync": False,
    }
