"""The two trainings of ``adaptive_train.py``: real data that packages ship, models, and target accuracies."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

HELD_OUT = 5  # each fifth sample is held out
CONTEXT, FEWEST_BYTES = 12, 1_000_000

Held = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        data: Returns the training data and what is held out.
        model: Returns a new model.
        target: The accuracy on what is held out at which a run ends.
        test_every: Samples between two tests of it.
    """

    data: Callable[[], tuple[TensorDataset, Held]]
    model: Callable[[], nn.Module]
    target: float
    test_every: int


def split(x: torch.Tensor, y: torch.Tensor) -> tuple[TensorDataset, Held]:
    """Holds each fifth sample out."""
    held = torch.arange(len(x)) % HELD_OUT == 0
    return TensorDataset(x[~held], y[~held]), (x[held], y[held])


def digits() -> tuple[TensorDataset, Held]:
    """Returns scikit-learn's 1,797 images of 8 x 8."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)
    return split(images[:, None], torch.tensor(found.target))


def digits_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32 * 16, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def text() -> tuple[TensorDataset, Held]:
    """Returns the source of Python's standard library: the next character after twelve."""
    text, files = bytearray(), sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for file in files:
        text += file.read_bytes()
        if len(text) > FEWEST_BYTES:
            break
    codes = torch.tensor(list(text)).clamp(max=127)
    windows = codes.unfold(0, CONTEXT + 1, 1)
    block = torch.arange(len(windows)) // 4096  # neighbours share characters: whole blocks are held out
    held = block % 20 == 0
    x, y = windows[:, :-1], windows[:, -1]
    return TensorDataset(x[~held].contiguous(), y[~held].contiguous()), (
        x[held][::4].contiguous(),
        y[held][::4].contiguous(),
    )


def text_model() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(128, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 256), nn.ReLU(), nn.Linear(256, 128)
    )


TASKS = {
    "digits": Task(digits, digits_model, 0.992, 4_000),
    "text": Task(text, text_model, 0.61, 50_000),
}
