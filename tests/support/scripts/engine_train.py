"""Trains by explicit calls to the step engine, on a fixed list of tensors and without a loader, until a file ``stop``
is there. The batch grows in mid-epoch. Arguments: the folder for all that is written.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

import elastic_launcher.torch as elastic
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.data.training_data import TrainingData

SAMPLES, MICRO = 50, 5
SCHEDULE = BatchSchedule(((0, 12), (26, 18)))
X = torch.randn(SAMPLES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
Y = X.sum(1, keepdim=True).sin()


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns them as they are before the first step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def main() -> None:
    """Trains."""
    folder = Path(sys.argv[1])
    job = elastic.init(SCHEDULE.batch_size(0), MICRO)
    job._session.schedule = SCHEDULE
    engine, data = job._engine, TrainingData("tensors", SAMPLES)
    model, optimizer = job.prepare(*model_and_optimizer())

    def work_on(micro: MicroBatch) -> None:
        _, start, size = micro.piece
        engine.begin_micro_batch(micro)
        optimizer.zero_grad()
        engine.backward(nn.functional.mse_loss(model(X[start : start + size]), Y[start : start + size]))
        optimizer.step()
        engine.end_micro_batch(micro)
        time.sleep(0.01)
        if (folder / "stop").exists():
            job.stop()

    for _ in job.epochs(100_000):
        if engine.begin_loop(data):
            for micro in engine.rehearse():
                work_on(micro)
            if engine.admit():
                while engine.begin_step():
                    for micro in engine.micro_batches():
                        work_on(micro)
                    engine.end_step()
                engine.end_loop()
            engine.close_loop()
    if job.is_main:
        torch.save({"steps": job.step, "model": model.state_dict()}, folder / "end.pt")


if __name__ == "__main__":
    main()
