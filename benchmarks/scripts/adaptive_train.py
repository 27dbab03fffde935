"""Trains to a target accuracy on held-out data, and writes the seconds that the training took.

A test of the accuracy is not counted, and neither is the start of the processes.

Arguments: data (digits or text), global batch, the largest batch that it may adapt to (0: fixed), learning rate, ranks,
seed, seconds after which it is not worth going on, file for the result.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from adaptive_tasks import TASKS
from torch.nn import functional

import elastic_launcher.torch as elastic

DATA, BATCH, MOST, RATE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
WORLD, SEED, LONGEST, OUT = int(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7]), Path(sys.argv[8])


def main() -> None:
    task = TASKS[DATA]
    train, (test_x, test_y) = task.data()
    job = elastic.init(BATCH, max(BATCH, MOST), seed=SEED)
    torch.manual_seed(SEED)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    model, optimizer = job.prepare(model, optimizer)
    loader = job.dataloader(train, shuffle=True, seed=SEED)
    if MOST:
        loader.autoscale_batch_size(MOST)
    batches = []
    seconds, tested, done, began = 0.0, 0, 0, 0.0
    for _ in job.epochs(1_000_000):
        for x, y in loader:
            optimizer.zero_grad()
            job.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            if not job.sync_gradients or job.world_size != WORLD:
                continue
            now = time.perf_counter()
            if not began:
                began = now
                continue
            done += job.global_batch_size
            if not batches or batches[-1][1] != job.global_batch_size:
                batches.append((job.step, job.global_batch_size))
            if done - tested < task.test_every:
                continue
            tested = done
            seconds += now - began
            if job.is_main:
                model.eval()
                with torch.no_grad():
                    right = (model(test_x).argmax(-1) == test_y).double().mean().item()
                model.train()
                reached = right >= task.target
                if reached or seconds >= LONGEST:
                    found = {"seconds": seconds, "steps": job.step, "batches": batches, "reached": reached}
                    OUT.write_text(json.dumps(found))
                    job.stop("the target is reached" if reached else "it takes too long")
            began = time.perf_counter()


if __name__ == "__main__":
    main()
