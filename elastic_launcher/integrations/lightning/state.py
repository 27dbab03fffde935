"""What Lightning remembers between two steps, for processes that join and for checkpoints of the job."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import ProgressBar

from elastic_launcher.integrations.lightning.step_logs import StepResults
from elastic_launcher.integrations.lightning.stream import ENDED
from elastic_launcher.torch import Job

PLAIN = (bool, int, float, str, type(None))
METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
PLACE = ("_first_loop_iter", "_current_fx")


class TrainerState:
    """The part of a Trainer's state that does not follow from where the job is.

    Args:
        trainer: Lightning's Trainer.
        job: The job.
        results: What its training loop has logged.

    Attributes:
        ended: Whether this `fit` is over in this process, and another one may train.
    """

    def __init__(self, trainer: Any, job: Job, results: StepResults) -> None:
        self._trainer = trainer
        self._job = job
        self._results = results
        self.ended = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of callbacks, of what was logged, of loggers and of some counters."""
        trainer = self._trainer
        connector = trainer._logger_connector
        return {
            "names": self._names(),
            "callbacks": [_callback_state(one) for one in trainer.callbacks],
            "loggers": [vars(one).get("_version") for one in trainer.loggers],
            "results": self._results.kept(),
            "metrics": {name: dict(getattr(connector, name)) for name in METRICS},
            "place": {name: getattr(connector, name) for name in PLACE},
            "counters": {name: one.state_dict() for name, one in self._counters().items()},
            "validated": trainer.fit_loop.epoch_loop.val_loop._has_run,
            "should_stop": trainer.should_stop,
            "stops": trainer.should_stop and trainer.fit_loop._can_stop_early,
            "steps": trainer.global_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned; ends a job that has done all steps of the Trainer, or decided to stop.

        Raises:
            ValueError: If the Trainer has other callbacks or loggers.
        """
        trainer = self._trainer
        if state["names"] != self._names():
            raise ValueError(
                f"callbacks and loggers of the Trainer are {', '.join(state['names'])} there, and "
                f"{', '.join(self._names())} here; give it the same ones in the same order"
            )
        connector = trainer._logger_connector
        for callback, kept in zip(trainer.callbacks, state["callbacks"], strict=True):
            vars(callback).update(kept["attributes"])
            if kept["state"]:
                callback.load_state_dict(kept["state"])
        for logger, version in zip(trainer.loggers, state["loggers"], strict=True):
            if "_version" in vars(logger):
                logger._version = version
        self._results.take(state["results"], trainer.strategy.reduce)
        for name, values in {**state["metrics"], **state["place"]}.items():
            setattr(connector, name, values)
        for name, one in self._counters().items():
            one.load_state_dict(state["counters"][name])
        trainer.fit_loop.epoch_loop.val_loop._has_run = state["validated"]
        trainer.should_stop = state["should_stop"]
        stops = state.get("stops", False)  # older checkpoints do not say it
        if not self.ended and (stops or 0 <= trainer.max_steps <= state["steps"]):
            self._job.stop(ENDED)

    def _names(self) -> list[str]:
        return [type(one).__name__ for one in (*self._trainer.callbacks, *self._trainer.loggers)]

    def _counters(self) -> dict[str, Any]:
        epoch = self._trainer.fit_loop.epoch_loop
        return {
            "schedulers": epoch.scheduler_progress,
            "manual": epoch.manual_optimization.optim_step_progress,
            "validation": epoch.val_loop.batch_progress,
        }


def _callback_state(callback: Any) -> dict[str, Any]:
    if isinstance(callback, ProgressBar):
        return {"attributes": {}, "state": {}}
    return {
        "attributes": {name: value for name, value in vars(callback).items() if _is_plain(value)},
        "state": callback.state_dict(),
    }


def _is_plain(value: Any) -> bool:
    """Whether an attribute of a callback can travel: numbers, texts, tensors, and lists and dicts of such."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and _is_plain(one) for key, one in value.items())
    return isinstance(value, PLAIN) or (isinstance(value, torch.Tensor) and not value.requires_grad)
