"""The training script of whole launches: a tiny model, short steps, and one mistake if it is asked for."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time

import torch
from torch.utils.data import Dataset

import elastic_launcher.torch as elastic

SAMPLES, BATCH, MICRO = 32, 8, 4
PACE = 0.01  # seconds that each micro-batch takes at least, so that there is time to act


class Sums(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Two numbers and their sum; a loader worker that is to die does so over one of the samples."""

    def __init__(self, deadly: int | None) -> None:
        self.x = torch.arange(2.0 * SAMPLES).reshape(SAMPLES, 2) / (2 * SAMPLES)
        self.deadly = deadly

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x[index], self.x[index].sum(0, keepdim=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fault", choices=["exception", "kill", "kill worker"])
    parser.add_argument("--rank", type=int, default=1, help="which rank fails")
    parser.add_argument("--step", type=int, default=10, help="in which step; the sample over which a worker dies")
    parser.add_argument("--lines", type=int, default=0, help="how many it prints in each step")
    parser.add_argument("--late", action="store_true", help="after the backward pass instead of before it")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    job = elastic.init(BATCH, MICRO)
    tempfile.mkdtemp()  # scripts leave things in the temporary folder that they are given
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = job.prepare(model, optimizer)
    data = Sums(options.step if options.fault == "kill worker" else None)
    loader = job.dataloader(data, shuffle=True, num_workers=options.workers)

    def fail(*, late: bool) -> None:
        if late != options.late or job.rank != options.rank or job.step < options.step:
            return
        if options.fault == "exception":
            raise ArithmeticError("the third wheel came off")
        if options.fault == "kill" and job.generation == 1:  # once: who takes its place as this rank goes on
            os.kill(os.getpid(), signal.SIGKILL)

    print("ready")
    for _ in job.epochs(options.epochs):
        for x, y in loader:
            print(f"{'.' * 100}\n" * options.lines, end="")
            fail(late=False)
            job.backward(torch.nn.functional.mse_loss(model(x), y))
            fail(late=True)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(PACE)
        job.log({"rank": job.rank})  # on all ranks: the lowest one's counts
        if os.path.exists("stop"):
            job.stop("asked to")
    print("over", job.rank)


if __name__ == "__main__":
    main()
