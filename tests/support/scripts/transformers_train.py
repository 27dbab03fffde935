"""A script with Hugging Face's Trainer under the launcher; its argument is a JSON object.

It trains ``epochs`` epochs of the model ``kind``, or until there is a file ``stop``, and writes what came of it to
``folder``: ``weights.pt``, ``history.json``, and the Trainer's own files. With ``resume`` it begins with the Trainer's
newest checkpoint, if there is one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

import elastic_launcher.integrations.transformers as elastic
from tests.support.transformers_models import BATCH, MICRO, InOrderTrainer, history, make

options = json.loads(sys.argv[1])
folder = Path(options["folder"])
torch.set_default_dtype(torch.float64)
Plain: Any = InOrderTrainer
if options["kind"].startswith("sft"):
    from tests.support.trl_models import SFTTrainer as Plain
    from tests.support.trl_models import make
job = elastic.init(BATCH, options.get("micro", MICRO))


class Pace(TrainerCallback):  # type: ignore[misc] # transformers is not followed
    """Takes its time for a step, and ends the training where the test says so."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(options.get("pace", 0.0))
        if "pace" in options and job.reduce(float((folder / "stop").exists()), op="max"):
            control.should_training_stop = True
        if state.global_step == options.get("stops"):
            control.should_training_stop = True


class Mortal(Plain):  # type: ignore[misc] # trl is not followed
    """Kills a rank after a step, in an evaluation, or while it saves a checkpoint or the model, where the test says."""

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        if job.rank is not None and job.rank == (job.world_size or 0) - 1 > 0:
            self._die("dies")
        return super().prediction_step(*args, **kwargs)

    def _save_rng_state(self, *args: Any) -> None:
        self._die("dies_saving")
        super()._save_rng_state(*args)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self._die("dies_saving_model")
        super()._save(*args, **kwargs)

    def _die(self, option: str) -> None:
        if self.state.global_step == options.get(option) and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class ElasticInOrder(elastic.ElasticTrainerMixin, Mortal):
    """The elastic Trainer, in the order of the samples."""


trainer = make(
    options["kind"],
    folder,
    ElasticInOrder,
    [Pace()],
    job=job,
    num_train_epochs=options["epochs"],
    **options.get("arguments", {}),
)
trainer.train(resume_from_checkpoint="resume" in options and any(folder.glob("checkpoint-*")))
trainer.evaluate()
if job.is_main:
    torch.save(trainer.model.state_dict(), folder / "weights.pt")
    (folder / "history.json").write_text(json.dumps(history(trainer)))
trainer.save_model(str(folder / "saved"))
trainer.save_state()
trainer.evaluate()  # the others wait here for a rank 0 that saves
