"""What a process does for Lightning as it becomes rank 0: nobody is it while a Trainer is set up, and it may change."""

from __future__ import annotations

import csv
from typing import Any

from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.utilities import _log_hyperparams


def choose_versions(trainer: Any) -> None:
    """Has loggers choose their folder before any rank writes there, so that all choose the same."""
    for logger in trainer.loggers:
        if "_version" in vars(logger):
            _ = logger.version


def become_rank_zero(trainer: Any, step: int) -> None:
    """Has loggers of this process act.

    Args:
        trainer: Lightning's Trainer.
        step: Steps that the job has done: after some, another process has written before.
    """
    for logger in trainer.loggers:
        if step and isinstance(logger, CSVLogger) and logger._experiment is None:
            _open_again(logger)
    if getattr(trainer, "enable_autolog_hparams", True):
        _log_hyperparams(trainer)
    for callback in trainer.callbacks:
        if isinstance(callback, ModelSummary) and not step:
            callback.on_fit_start(trainer, trainer.lightning_module)


def show_progress(trainer: Any, in_epoch: bool) -> None:
    """Has the progress bar of this process act.

    Args:
        trainer: Lightning's Trainer.
        in_epoch: Whether this is between two steps of an epoch.
    """
    module = trainer.lightning_module
    for callback in trainer.callbacks:
        if isinstance(callback, ProgressBar):
            callback.enable()
            callback.on_train_start(trainer, module)
            if in_epoch:
                callback.on_train_epoch_start(trainer, module)


def _open_again(logger: CSVLogger) -> None:
    """Makes a CSVLogger's writer, which deletes the rows of an earlier one, and puts them back."""
    files, path = logger._fs, f"{logger.log_dir}/metrics.csv"
    written = files.cat_file(path) if files.isfile(path) else b""
    writer = logger.experiment
    if written:
        with files.open(path, "wb") as file:
            file.write(written)
        writer.metrics_keys = next(csv.reader([written.decode().splitlines()[0]]))
