"""Sets its learning rate at the top of the loop body, by the step."""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

SAMPLES, BATCH = 24, 8
X = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rate(step: int) -> float:
    return 0.05 * (1 + step % 5)


def build() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(3, 3).double()


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 2 * x.roll(1, 1)).square().mean()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = elastic.init(global_batch_size=BATCH, max_batch_per_gpu=BATCH)
    model = build()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    loader = job.dataloader(TensorDataset(X))
    for _ in job.epochs(100_000):
        for (x,) in loader:
            optimizer.param_groups[0]["lr"] = rate(job.step)
            job.backward(loss_of(model, x))
            optimizer.step()
            optimizer.zero_grad()
            if job.sync_gradients:
                time.sleep(0.004)
                if (folder / "stop").exists():
                    job.stop()
    if job.is_main:
        torch.save({"step": job.step, "model": model.state_dict()}, folder / "model.pt")
