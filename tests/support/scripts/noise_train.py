"""Trains a quadratic whose gradient noise is known, and writes down the averages of the noise after each step, until a
file ``stop`` is there. Arguments: the folder for all that is written, and samples of a micro-batch at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic
from elastic_launcher.torch.gradients import noise_meter
from tests.support.quadratics import BATCH, DATA, Quadratic, still


def main() -> None:
    """Trains."""
    folder = Path(sys.argv[1])
    noise_meter.EVERY = 1
    job = elastic.init(BATCH, int(sys.argv[2]))
    model = Quadratic()
    model, optimizer = job.prepare(model, still(model))
    meter = job._session.measure_noise()
    loader = job.dataloader(TensorDataset(DATA), shuffle=True, seed=5)
    with open(folder / f"averages-{os.getpid()}.jsonl", "w", buffering=1, encoding="utf-8") as file:
        for _ in job.epochs(100_000):
            for (x,) in loader:
                job.backward(model(x))
                optimizer.step()
                time.sleep(0.002)
                if job.sync_gradients:
                    averages = [number.hex() for number in meter.averages.to_numbers()]
                    row = {"step": job.step, "world_size": job.world_size, "averages": averages}
                    print(json.dumps(row), file=file)
                    if (folder / "stop").exists():
                        job.stop()


if __name__ == "__main__":
    main()
