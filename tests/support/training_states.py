"""Training states with something of every kind in them, and saves of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from elastic_launcher.checkpoint import Mark
from elastic_launcher.checkpoint.store import LocalStore
from elastic_launcher.torch.state.checkpoint_writer import Saved, Saver
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.training_state import TrainingState
from tests.support.checkpoints import JOB

POSITION = Position(epoch=2, step_in_epoch=5, step=21, samples=640)


class Tied(nn.Module):
    """Two layers with one weight, as language models have them, batch norm, and a picture's memory layout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


class Everything:
    """An object whose state is of all kinds that can be carried."""

    def __init__(self, filled: bool) -> None:
        self.state: dict[str, Any] = {"number": 0}
        if filled:
            self.state = {
                "half": torch.randn(3, 2).bfloat16(),
                "complex": torch.randn(2, dtype=torch.complex128),
                "flags": torch.tensor([True, False]),
                "nothing": torch.empty(0, 3),
                "scalar": torch.tensor(2.5, dtype=torch.float64),
                "expanded": torch.randn(3, 1).expand(3, 4),
                "array": np.arange(5, dtype=np.uint16),
                "bytes": b"\x00\xff",
                "nested": [1, (None, float("nan")), {"tensor": torch.ones(2)}],
                "large": torch.randn(100_000),
            }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def training(steps: int = 0, filled: bool = False) -> TrainingState:
    torch.manual_seed(3 + steps)
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    state = TrainingState([model], [optimizer], [scheduler], [], {}, {"best": 0.5 + steps})
    state.register("everything", Everything(filled))
    for _ in range(steps):
        picture = model.conv(torch.randn(2, 2, 3, 3)).mean()
        loss = model.head(model.norm(model.embedding(torch.randint(6, (8,))))).pow(2).mean() + picture
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return state


def flat(value: Any) -> Any:
    """Returns a value in which tensors and arrays can be compared, bit by bit."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1)
        raw = torch.view_as_real(raw).reshape(-1) if raw.is_complex() else raw
        return str(value.dtype), tuple(value.shape), raw.view(torch.uint8).tolist()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(flat, value)]
    return str(value) if isinstance(value, float) else value


class Outcome:
    """A saver, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.saved: list[Saved] = []
        self.failed: list[tuple[int, str]] = []
        self.folder = folder
        self.saver = Saver(LocalStore(folder), 2, self.saved.append, lambda step, why: self.failed.append((step, why)))

    def save(self, state: TrainingState, step: int = 21, generation: int = 1) -> None:
        self.saver.save(state, replace(POSITION, step=step), JOB, Mark(1, generation, step), 3)
        self.saver.wait()
