"""Trains two epochs and writes down the gradient that `job.backward` leaves in each step.

The first epoch's loss is a mean over samples, the second one's a mean over tokens: sequences have 0 to 4 of them. With
``sharded`` the ranks of each node share the model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

FEATURES, LENGTH, CLASSES, SEED, RATE, EPOCHS = 6, 4, 3, 7, 0.1, 2
NO_TOKEN = -100  # as cross_entropy ignores by default


def data(samples: int) -> TensorDataset:
    """Sequences and the class of each token; every third sequence has no token at all."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, LENGTH, FEATURES, dtype=torch.float64, generator=generator)
    y = torch.randint(0, CLASSES, (samples, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (samples,), generator=generator)
    lengths[::3] = 0
    return TensorDataset(x, y.masked_fill(torch.arange(LENGTH) >= lengths[:, None], NO_TOKEN), y[:, 0])


def build(width: int) -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers).double()


def sample_loss(model: nn.Module, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The mean over samples."""
    return functional.cross_entropy(model(x).mean(1), label)


def token_loss(model: nn.Module, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mean over tokens: NaN where there is none."""
    return functional.cross_entropy(model(x).flatten(0, 1), tokens.flatten())


def token_mean(model: nn.Module, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The same, and 0 where there is none: a sharded model takes nothing that is not finite."""
    total = functional.cross_entropy(model(x).flatten(0, 1), tokens.flatten(), reduction="sum")
    return total / max(1, int((tokens != NO_TOKEN).sum()))


def flat_gradient(model: nn.Module) -> torch.Tensor:
    """The gradient of all of a model; all ranks that share one call it."""
    whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
    return torch.cat([one.flatten() for one in whole])


def digest(flat: torch.Tensor) -> str:
    """A digest of every bit of a gradient."""
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def main() -> None:
    options = json.loads(sys.argv[1])
    folder, sharded = Path(options["folder"]), options.get("sharded", False)
    if sharded:
        elastic.init_node_group("gloo")
    job = elastic.init(options["batch"], options["micro"])
    model = build(options["width"])
    for module in (model[0], model) if sharded else ():
        fully_shard(module)
    loss_of_tokens = token_mean if sharded else token_loss
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    loader = job.dataloader(data(options["samples"]), shuffle=True, seed=SEED)
    gradients, digests, losses = [], [], []
    for epoch in job.epochs(EPOCHS):
        for x, tokens, label in loader:
            if epoch == 0:
                job.backward(sample_loss(model, x, label))
            else:
                job.backward(loss_of_tokens(model, x, tokens), weight=int((tokens != NO_TOKEN).sum()))
            if job.sync_gradients:
                flat = flat_gradient(model)
                digests.append(digest(flat))
                losses.append(job.loss)
                if job.is_main:
                    gradients.append(flat)
            optimizer.step()
            optimizer.zero_grad()
    (folder / f"rank-{job.rank}.json").write_text(json.dumps({"digests": digests, "losses": losses}))
    if job.is_main:
        torch.save(gradients, folder / "gradients.pt")


if __name__ == "__main__":
    main()
