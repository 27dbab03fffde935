"""Trains as ``adaptive_train.py`` does, with AdaptDL 0.2.11, and writes the seconds that the training took.

It needs setuptools below 81, requests, semver, portpicker and autograd beside AdaptDL, and `numpy.int`, which it sets.

Arguments: data (digits or text), global batch, the largest batch that it may adapt to, learning rate, seed, seconds
after which it is not worth going on, file for the result.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from adaptive_tasks import TASKS
from torch.nn import functional

np.int = int  # type: ignore[attr-defined] # it was removed from numpy, and AdaptDL's fit needs it

import adaptdl.collective  # type: ignore[import-not-found, unused-ignore] # noqa: E402
import adaptdl.env  # type: ignore[import-not-found, unused-ignore] # noqa: E402
import adaptdl.torch as adl  # type: ignore[import-not-found, unused-ignore] # noqa: E402

DATA, BATCH, MOST, RATE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
SEED, LONGEST, OUT = int(sys.argv[5]), float(sys.argv[6]), Path(sys.argv[7])


def main() -> None:
    adl.init_process_group("gloo")
    task = TASKS[DATA]
    train, (test_x, test_y) = task.data()
    torch.manual_seed(SEED)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    model = adl.AdaptiveDataParallel(model, optimizer)
    loader = adl.AdaptiveDataLoader(train, batch_size=BATCH, shuffle=True)
    loader.autoscale_batch_size(MOST, local_bsz_bounds=(1, MOST), gradient_accumulation=True)
    batches: list[tuple[int, int]] = []
    seconds, tested, done, step, began = 0.0, 0, 0, 0, 0.0
    for _ in adl.remaining_epochs_until(1_000_000):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            now = time.perf_counter()
            if not began:
                began = now
                continue
            step, done = step + 1, done + len(x) * adaptdl.env.num_replicas()
            if not batches or batches[-1][1] != loader.current_batch_size:
                batches.append((step, loader.current_batch_size))
            if done - tested < task.test_every:
                continue
            tested = done
            seconds += now - began
            model.module.eval()
            with torch.no_grad():
                right = (model.module(test_x).argmax(-1) == test_y).double().mean().item()
            model.module.train()
            reached = right >= task.target
            if adaptdl.collective.allreduce(reached or seconds >= LONGEST, lambda one, other: one or other):
                if adaptdl.env.replica_rank() == 0:
                    OUT.write_text(
                        json.dumps({"seconds": seconds, "steps": step, "batches": batches, "reached": reached})
                    )
                return
            began = time.perf_counter()


if __name__ == "__main__":
    main()
