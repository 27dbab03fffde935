"""Mixed precision with a GradScaler on a GPU: a job trains like plain torch, the step that overflows left out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, EPOCHS, FEATURES, SEED, X, Y, batches

GPU = torch.device("cuda", 0)
TOO_LARGE, DROP = 2.0**60, 2.0**-50  # the first step overflows in half precision, and no other


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.amp.GradScaler("cuda", init_scale=TOO_LARGE, backoff_factor=DROP)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.float16):
        return functional.cross_entropy(model(x), y)


def end_step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def train_plain() -> tuple[nn.Module, float]:
    model, optimizer, scaler = build()
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            scaler.scale(loss_of(model, x.float().to(GPU), y.to(GPU))).backward()
            end_step(model, optimizer, scaler)
    return model, scaler.get_scale()


def _train(group: ThreadGroup) -> tuple[nn.Module, float]:
    job = thread_job(group, BATCH, 5, device=GPU)
    model, optimizer, scaler = job.prepare(*build())
    loader = job.dataloader(TensorDataset(X.float(), Y), shuffle=True, seed=SEED, pin_memory=True)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            assert x.device == GPU
            job.backward(scaler.scale(loss_of(model, x, y)))
            end_step(model, optimizer, scaler)
    return model, scaler.get_scale()


def test_a_job_in_mixed_precision_trains_like_plain_torch() -> None:
    plain, scale = train_plain()
    [(model, found)] = run_ranks(1, _train)
    assert found == scale == TOO_LARGE * DROP
    for name, parameter in plain.state_dict().items():
        assert torch.allclose(model.state_dict()[name], parameter, rtol=1e-2, atol=1e-3), name
