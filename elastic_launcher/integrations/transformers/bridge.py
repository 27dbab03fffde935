"""Where the Trainer's loop meets the job: a callback, before all others."""

from __future__ import annotations

import json
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from elastic_launcher.integrations.jobs import refuse_sharded
from elastic_launcher.integrations.transformers.steps import ENDED

FIELDS = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)


PROGRESS = "transformers.trainer"  # the name of what the Trainer remembers, in the job's state


class Bridge(TrainerCallback):  # type: ignore[misc] # transformers is not followed
    """Prepares the model, the optimizer and the scheduler, and keeps the Trainer's position that of the job."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begins the training: a new job at the position of a checkpoint of the Trainer's own, if one was loaded."""
        trainer, steps = self._trainer, self._trainer._steps
        refuse_sharded(trainer.model, "Hugging Face's Trainer")
        scheduler = trainer.lr_scheduler
        is_torchs = isinstance(scheduler, (LRScheduler, ReduceLROnPlateau))  # GreedyLR is neither
        trainer.job.prepare(trainer.model, trainer.optimizer.optimizer, *([scheduler] if is_torchs else []))
        if not is_torchs:
            trainer.job.register("transformers.scheduler", scheduler)
        trainer.job.register(PROGRESS, TrainerProgress(trainer))
        trainer.job.register("transformers.steps", steps)
        if trainer._token_metrics is not None:
            trainer.job.register("transformers.token_metrics", trainer._token_metrics)
        if state.global_step:
            trainer.job.start_at(*divmod(state.global_step, len(steps)))
        steps.begin(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Sets the epoch: the loop of a process that has joined counts from 0."""
        state.epoch = self._trainer._steps.position()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the training where the job has ended."""
        if self._trainer._steps.stopped:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the training on all ranks."""
        self._trainer._steps.finish()


class TrainerProgress:
    """What the Trainer remembers between two steps, for processes that join and for checkpoints of the job."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, what was logged, and the state of callbacks that export one."""
        trainer = self._trainer
        logs = [one for one in trainer.state.log_history if one is not trainer._summary]  # each process logs its own
        return {
            **{name: getattr(trainer.state, name) for name in FIELDS},
            "log_history": json.dumps(logs, default=float),  # as text: run times differ by rank
            "first_step": getattr(trainer, "_initial_global_step", 0),
            "current_flos": trainer.current_flos,
            "last_logged": trainer._globalstep_last_logged,
            "stops": trainer.control.should_training_stop and trainer.state.global_step < trainer.state.max_steps,
            "callbacks": [one.state()["attributes"] for one in self._callbacks()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned; ends a job that has done all steps, or was ended by a callback."""
        trainer = self._trainer
        for name in FIELDS:
            setattr(trainer.state, name, state[name])
        trainer.state.log_history = json.loads(state["log_history"])
        trainer._initial_global_step = state["first_step"]
        trainer.current_flos = state["current_flos"]
        trainer._globalstep_last_logged = state["last_logged"]
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=True):
            vars(callback).update(attributes)
        stops = state.get("stops", False)  # older checkpoints do not say it
        if stops or trainer.state.global_step >= trainer.state.max_steps:
            trainer.job.stop(ENDED)

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
