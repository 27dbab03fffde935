"""A training loop of Accelerate, which stock and elastic Accelerators run alike; in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, MICRO = 203, 24, 6  # the last step of an epoch has 11 samples
STEPS = 9  # of an epoch
EVALUATED = 4  # after so many steps an evaluation comes in the middle of an epoch

Log = dict[str, float]


def data(samples: int = SAMPLES, seed: int = 1) -> TensorDataset:
    """Returns inputs, and targets of which each sample has three with weights of their own."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 6, generator=draw, dtype=torch.float64)
    weights = torch.randint(0, 4, (samples, 3), generator=draw).double()
    return TensorDataset(inputs, inputs[:, :3] * inputs[:, 3:], weights)


def build() -> nn.Module:
    """Returns a model; always the same."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train(
    accelerator: Any,
    epochs: Iterable[int],
    *,
    steps: int = 0,
    weighted: bool = True,
    after_step: Callable[[], None] = lambda: None,
) -> tuple[nn.Module, list[Log]]:
    """Trains a model, and evaluates it in the middle of epochs and after them; returns it with what was logged.

    Args:
        accelerator: An Accelerator, stock or elastic.
        epochs: The epochs.
        steps: After how many of its steps a stock Accelerator ends.
        weighted: Whether the loss is a mean over weights, as over tokens.
        after_step: Called when a step is complete.
    """
    job = getattr(accelerator, "job", None)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader, held_out = DataLoader(data(), BATCH), DataLoader(data(50, 2), 7)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    logs: list[Log] = []
    done = 0
    for _ in epochs:
        model.train()
        for inputs, targets, weights in loader:
            with accelerator.accumulate(model):
                loss, weight = loss_of(model(inputs), targets, weights if weighted else torch.ones_like(weights))
                accelerator.backward(loss, **({"weight": weight} if job is not None else {}))
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            done = done + 1 if job is None else job.step
            log = {"step": done, "rate": scheduler.get_last_lr()[0]}
            log["loss"] = loss.item() if job is None else job.loss
            log["norm"] = float(norm) if job is None else job.reduce(norm, op="max")  # of a step taken over: 0
            if done % EVALUATED == 0:
                log |= evaluate(accelerator, model, held_out)
            logs.append(log)
            after_step()
            if done == steps:
                break
        if job is None or job.rank is not None:  # else the others have done this epoch
            logs.append({"step": done if job is None else job.step, **evaluate(accelerator, model, held_out)})
        if done == steps:
            break
    return model, logs


def loss_of(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mean of errors over their weights, and the sum of these."""
    errors = functional.mse_loss(outputs, targets, reduction="none")
    return (errors * weights).sum() / weights.sum(), weights.sum()


def evaluate(accelerator: Any, model: nn.Module, loader: Any) -> Log:
    """Returns the loss of a model on held-out data."""
    model.eval()
    found = []
    for inputs, targets, _ in loader:
        with torch.no_grad():
            outputs = model(inputs)
        found.append(accelerator.gather_for_metrics((outputs, targets)))
    model.train()
    outputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return {"samples": len(outputs), "eval_loss": float(functional.mse_loss(outputs, targets))}
