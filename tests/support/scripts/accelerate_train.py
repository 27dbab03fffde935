"""A script of Accelerate under the launcher; its argument is a JSON object.

It trains ``epochs`` epochs, or until there is a file ``stop``, and writes what came of it to ``folder``: ``result.pt``
with weights and logs, ``state`` as `save_state` writes it, and a line for each call of a tracker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from accelerate.utils import ProjectConfiguration

import elastic_launcher.integrations.accelerate as elastic
from tests.support.accelerate_loop import BATCH, MICRO, STEPS, train
from tests.support.accelerate_trackers import Lines

options = json.loads(sys.argv[1])
folder = Path(options["folder"])
torch.set_num_threads(1)
job = elastic.init(BATCH, options.get("micro", MICRO))
accelerator = elastic.ElasticAccelerator(
    job,
    log_with=Lines(folder / "lines.jsonl"),
    project_config=ProjectConfiguration(str(folder / "saved"), automatic_checkpoint_naming=True, total_limit=2),
)
accelerator.init_trackers("project", {"batch": BATCH})
with accelerator.main_process_first():
    folder.mkdir(exist_ok=True)
accelerator.wait_for_everyone()


def after_step() -> None:
    accelerator.log({"loss": job.loss}, step=job.step)
    if "pace" not in options and job.step % STEPS == 0:
        accelerator.save_state()
    time.sleep(options.get("pace", 0.0))
    if job.rank == 0 and job.step == options.get("dies") and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "stop").exists():
        accelerator.set_trigger()
    if accelerator.check_trigger():
        job.stop()


model, logs = train(accelerator, job.epochs(options["epochs"]), after_step=after_step)
accelerator.wait_for_everyone()
accelerator.save({"model": accelerator.unwrap_model(model).state_dict(), "logs": logs}, folder / "result.pt")
accelerator.save_model(model, folder / "model")
accelerator.end_training()
