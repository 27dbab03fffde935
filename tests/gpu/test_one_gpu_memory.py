"""A GPU with little memory: micro-batches are halved until they fit, and the training stays the plain one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WIDE, SAMPLES, BATCH, STEPS = 1 << 20, 512, 256, 4  # 4 MB of activations a sample, and as much again twice
CLOSE = 1e-4  # weights change by less than they differ in 32 bits; what they predict does not
SCRIPT = f"""
import sys
import torch
from torch.nn import functional
import elastic_launcher.torch as elastic
from tests.gpu.test_one_gpu_memory import build, data

total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(2**30 / total)
job = elastic.init({BATCH}, "auto")
model, optimizer = job.prepare(*build(job.device))
loader = job.dataloader(torch.utils.data.TensorDataset(*data()))
sizes = set()
for _ in job.epochs({STEPS * BATCH // SAMPLES}):
    for x, y in loader:
        with job.micro_batch():
            loss = functional.mse_loss(model(x), y)
            job.backward(loss)
            if not job.micro.dropped:
                sizes.add(len(x))
        optimizer.step()
        optimizer.zero_grad()
torch.save({{"model": model.state_dict(), "steps": job.step, "sizes": sizes}}, sys.argv[1])
"""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 4, generator=generator), torch.randn(SAMPLES, 1, generator=generator)


def build(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, WIDE), nn.Tanh(), nn.Linear(WIDE, 1)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-7)


def predicted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x)


def test_micro_batches_are_halved_until_they_fit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "end.pt")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    end = torch.load(tmp_path / "end.pt", map_location="cpu", weights_only=False)
    assert 16 <= max(end["sizes"]) < BATCH, "a whole batch takes 2 to 3 GB, of 1 GB"
    assert end["steps"] == STEPS
    model, optimizer = build(torch.device("cuda", 0))
    x, y = (tensor.cuda() for tensor in data())
    before = predicted(model, x)
    for step in range(STEPS):
        chosen = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        functional.mse_loss(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    plain = predicted(model, x)
    model.load_state_dict(end["model"])
    assert (plain - before).abs().max() > 30 * CLOSE
    torch.testing.assert_close(predicted(model, x), plain, rtol=0, atol=CLOSE)
