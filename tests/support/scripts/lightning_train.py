"""A Lightning script under the launcher; its argument is a JSON object.

It trains ``epochs`` epochs of the module ``kind``, or until there is a file ``stop``, and writes what came of it to
``folder``: ``weights.pt``, ``history.json``, and the CSV logger's files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

import elastic_launcher.torch as elastic
from elastic_launcher.integrations.lightning import ElasticFabricStrategy, ElasticStrategy
from tests.support.lightning_modules import BATCH, MICRO, deciding, train, train_with_fabric

options = json.loads(sys.argv[1])
folder = Path(options["folder"])
torch.set_default_dtype(torch.float64)
job = elastic.init(BATCH, options.get("micro", MICRO))


class Pace(Callback):
    """Takes its time for a step, and ends the training, or a rank in a validation, where the test says so."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        time.sleep(options.get("pace", 0.0))
        if job.step == options.get("stops"):
            trainer.should_stop = True

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        if [job.rank, job.step] == options.get("dies") and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if job.reduce(float((folder / "stop").exists()), op="max"):
            trainer.should_stop = True


if options.get("fabric_twice"):
    steps: list[float] = []

    def paced() -> Iterator[int]:
        for epoch in job.epochs(10_000):
            yield epoch
            time.sleep(0.2)
            if job.reduce(float((folder / "stop").exists()), op="max"):
                job.stop()

    def after(fabric: Any) -> None:
        fabric.barrier()
        steps.append(float(fabric.all_reduce(torch.tensor(float(job.step)))))

    module, history = train_with_fabric(ElasticFabricStrategy(job), job.epochs(2), paced(), after=after), []
    (folder / f"steps-{job.rank}.json").write_text(json.dumps(steps))
elif options.get("fabric"):
    module, history = train_with_fabric(ElasticFabricStrategy(job), job.epochs(options["epochs"])), []
else:
    callbacks = deciding(folder / "saved") if options.get("decides") else []
    strategy = ElasticStrategy(job)
    more = options.get("trainer", {})
    module, history = train(options["kind"], folder, options["epochs"], Pace(), *callbacks, strategy=strategy, **more)
if job.is_main:
    torch.save(module.state_dict(), folder / "weights.pt")
    (folder / "history.json").write_text(json.dumps(history))
