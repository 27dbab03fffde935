"""The Trainer over all ranks of a job."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from elastic_launcher.integrations.jobs import refuse_deterministic
from elastic_launcher.integrations.transformers.bridge import PROGRESS, Bridge
from elastic_launcher.integrations.transformers.checks import check_arguments, read_training
from elastic_launcher.integrations.transformers.evaluation import Evaluated, SharedBatches
from elastic_launcher.integrations.transformers.reports import OnRank0, report_from_rank_0
from elastic_launcher.integrations.transformers.start import be_alone, is_new
from elastic_launcher.integrations.transformers.steps import Steps
from elastic_launcher.integrations.transformers.token_metrics import TokenMetrics, collects_token_metrics
from elastic_launcher.integrations.transformers.weight import Weight
from elastic_launcher.torch import Job

BARS = (ProgressCallback, DEFAULT_PROGRESS_CALLBACK)  # the latter is another one in a notebook


class ElasticTrainerMixin:
    """Trains with any Trainer over all ranks: `class MyElasticTrainer(ElasticTrainerMixin, MyTrainer): pass`.

    Args:
        *args: Of the Trainer.
        job: What `elastic_launcher.integrations.transformers.init` has returned.
        **kwargs: Of the Trainer.

    Raises:
        ValueError: For arguments that an elastic job can't follow; the message names them.
        TypeError: For callbacks that do what the job does.
    """

    # What is used of the Trainer that this is mixed into.
    args: Any
    model: Any
    state: Any
    control: Any
    accelerator: Any
    optimizer: Any
    callback_handler: Any
    current_flos: float
    preprocess_logits_for_metrics: Any
    _globalstep_last_logged: int

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        self.job = job
        self._steps: Steps | None = None
        self._summary: dict[str, Any] | None = None  # what was logged of the whole training
        self._early: list[dict[str, float]] = []  # what was logged before this process knew its rank
        training = next((one for one in (kwargs.get("args"), *args) if isinstance(one, TrainingArguments)), None)
        if training is None:
            raise ValueError("give the Trainer its TrainingArguments: args=TrainingArguments(output_dir=...)")
        refuse_deterministic(job, "Hugging Face's Trainer")
        check_arguments(training, job)
        be_alone(training, job)
        super().__init__(*args, **kwargs)
        self.accelerator.prepare_data_loader = lambda loader, *_, **__: loader  # the job moves batches to the device
        self.accelerator.backward = self._backward
        self._weight = Weight(self)
        self._token_metrics = TokenMetrics(self, job) if collects_token_metrics(self) else None
        self._backward_weight: float | None = None
        self._lines_for_bars()
        self.callback_handler.callbacks.insert(0, Bridge(self))

    def _lines_for_bars(self) -> None:
        """Has rank 0 print what is logged: a bar would belong to the process that was rank 0 first."""
        bars = [one for one in self.callback_handler.callbacks if isinstance(one, BARS)]
        for bar in bars:
            self.callback_handler.remove_callback(bar)
        if bars:
            self.callback_handler.add_callback(PrinterCallback)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains over all ranks, as `Trainer.train` does.

        Args:
            resume_from_checkpoint: As in transformers, for a new job; ignored in one that goes on from a checkpoint of
                its own, and in processes that join.
            *args: As in transformers.
            **kwargs: As in transformers.

        Raises:
            RuntimeError: If it, or that of another ElasticTrainer, was called before.
        """
        if self._steps is not None or PROGRESS in self.job._session.state.registered:
            raise RuntimeError(
                "train() was called before, by this ElasticTrainer or another one: a job trains once. Start another "
                "job for another training, which may begin with the model that this one saves"
            )
        report_from_rank_0(self.callback_handler.callbacks)
        if resume_from_checkpoint and not is_new(self.job):
            warnings.warn(
                f"resume_from_checkpoint={resume_from_checkpoint!r} is ignored: the job goes on with its own state",
                stacklevel=2,
            )
            resume_from_checkpoint = None
        output = super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        return output._replace(training_loss=output.metrics["train_loss"])

    # -- what the Trainer's loop asks for

    def get_train_dataloader(self) -> Any:
        """Returns the steps of the job in the place of a loader."""
        data, options = read_training(super().get_train_dataloader())  # type: ignore[misc]
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        loader = self.job.dataloader(data.dataset, shuffle=data.shuffle, seed=seed, **options)
        self._steps = Steps(self.job, loader, self._micro_batch, getattr(self.model, "main_input_name", "input_ids"))
        return self._steps

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Returns the loss of the step whose gradient is there."""
        assert self._steps is not None
        flos, tokens = self._steps.counted()
        self.current_flos += flos
        if self.args.include_num_input_tokens_seen not in ("no", False):
            self.state.num_input_tokens_seen += int(tokens)
        self.show_rank()
        self._say_early()
        loss = self.job.loss
        self._steps.losses.add(loss, self.args.logging_nan_inf_filter)
        self.model.train()  # also on a rank of whose samples none counts
        self.optimizer.train()  # which Accelerate has wrapped: only for optimizers that have such a mode
        if self._token_metrics is not None:
            self._token_metrics.end_step()
        return torch.tensor(loss, device=self.args.device)

    def _micro_batch(self, batch: Any) -> None:
        """Does the forward and backward pass of a micro-batch."""
        assert self._steps is not None
        self.current_gradient_accumulation_steps = 1  # the Trainer divides by it what is no mean over the batch
        items = self._get_num_items_in_batch([batch], self.args.device)  # type: ignore[attr-defined]
        self._backward_weight = self._weight.of(batch, items)
        self._steps.count(self.floating_point_ops(batch), self._weight.tokens(batch))  # type: ignore[attr-defined]
        if self._token_metrics is not None:
            self._token_metrics.begin(batch)
        if self._backward_weight == 0:
            self.job._session.buffers.begin_micro_batch()  # so that it is left out, and what was counted stays
            self.job.backward(None, weight=0)
            return
        super().training_step(self.model, batch, items)  # type: ignore[misc]

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        if self._token_metrics is not None:
            self._token_metrics.add()
        self.job.backward(loss, weight=self._backward_weight)

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Leaves random numbers as they are: those of a step follow from the job's seed."""

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        assert self._steps is not None
        if not self._steps.stopped:
            super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]

    # -- evaluation

    def _evaluate(self, trial: Any, ignore_keys: Any, skip_scheduler: bool = False) -> Any:
        """Evaluates while training; not at the start (``eval_on_start``) of a process whose job has begun before."""
        if skip_scheduler and not is_new(self.job):
            return {}
        return super()._evaluate(trial, ignore_keys, skip_scheduler)  # type: ignore[misc]

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluates or predicts; the ranks share the batches."""
        shared = SharedBatches(self, dataloader, prediction_loss_only, ignore_keys)
        preprocess, self.preprocess_logits_for_metrics = self.preprocess_logits_for_metrics, None  # it does this
        try:
            return super().evaluation_loop(  # type: ignore[misc]
                shared, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        finally:
            self.preprocess_logits_for_metrics = preprocess

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns loss, outputs and labels of a batch."""
        if isinstance(inputs, Evaluated):
            return inputs.result
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    # -- what is said and written

    def show_rank(self) -> None:
        """Has callbacks, arguments and Accelerate know whether this process is rank 0 now: it writes and deletes."""
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.job.rank == 0
        if self.job.rank is not None:
            for process in (self.args.distributed_state, self.accelerator.state):
                process.process_index = process.local_process_index = self.job.rank

    def is_world_process_zero(self) -> bool:
        """Whether this process is rank 0 now."""
        return self.job.rank == 0

    def is_local_process_zero(self) -> bool:
        """Whether this process is rank 0 now: only that one writes."""
        return self.job.rank == 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs values of all ranks: also to the job's events, report and metrics; nothing in a rehearsal."""
        if self.job.micro is not None and self.job.micro.rehearsal:
            return
        self.show_rank()
        summary = self._steps is not None and "train_loss" in logs and "total_flos" in logs
        if self._steps is not None:
            losses = self._steps.losses
            if summary:
                steps = self.state.global_step - getattr(self, "_initial_global_step", 0)
                logs["train_loss"] = losses.total / max(steps, 0.001)
            elif "loss" in logs and "learning_rate" in logs:
                logs["loss"] = losses.mean()
            if "grad_norm" in logs:  # 0 on a rank that has taken the step over from another one
                logs["grad_norm"] = self.job.reduce(logs["grad_norm"], op="max")
        super().log(logs, *args, **kwargs)  # type: ignore[misc] # which adds its own
        if summary:
            self._summary = self.state.log_history[-1]
        if self.job.rank is None and is_new(self.job):
            self._early.append(dict(self.state.log_history[-1]))
        self._log_in_job(logs)

    def _log_in_job(self, logs: dict[str, float]) -> None:
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        self.job.log({name: value for name, value in numbers.items() if not isinstance(value, bool)})

    def _say_early(self) -> None:
        """Has rank 0 print and report what was logged before any process was rank 0: an evaluation at the start."""
        for logs in self._early:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, (PrinterCallback, OnRank0)):
                    callback.on_log(self.args, self.state, self.control, logs=dict(logs))
            self._log_in_job({name: value for name, value in logs.items() if name != "step"})
        self._early.clear()

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Saves the model on rank 0, or on the next one to be it if that is lost meanwhile; call it on all ranks."""
        self._write("saving the model", partial(super().save_model, *args, **kwargs))  # type: ignore[misc]

    def save_state(self) -> None:
        """Saves the Trainer's state as `save_model` saves the model."""
        self._write("saving the Trainer's state", super().save_state)  # type: ignore[misc]

    def save_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Saves metrics as `save_model` saves the model."""
        self._write("saving metrics", partial(super().save_metrics, *args, **kwargs))  # type: ignore[misc]

    def _write(self, what: str, write: Callable[[], None]) -> None:
        def on_rank_0() -> None:
            self.show_rank()
            write()

        self.job._write_on_main(what, on_rank_0, 5)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Saves on rank 0, and on the next one to be it if that is lost meanwhile."""
        best = os.path.join(self.args.output_dir, f"checkpoint-{self.state.best_global_step}")
        found = {"saved": 0.0, "best": 0.0}
        while not found["saved"]:
            saves = self.job.rank == 0
            if saves:
                super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]
            found = {"saved": float(saves), "best": float(saves and self.state.best_model_checkpoint == best)}
            found = self.job.reduce(found, op="max")
        if self.job.rank != 0:
            self.store_flos()  # type: ignore[attr-defined]
        if found["best"]:
            self.state.best_model_checkpoint = best

    def _load_best_model(self) -> None:
        assert self._steps is not None
        self._steps.finish()
        if not os.path.isdir(self.state.best_model_checkpoint):
            raise RuntimeError(
                f"load_best_model_at_end: rank {self.job.rank} can't see {self.state.best_model_checkpoint}, which "
                "rank 0 has written; output_dir must be on a disk that all nodes share"
            )
        super()._load_best_model()  # type: ignore[misc]

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Is refused.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("an elastic job trains one model: search with a pipeline step for each trial")


class ElasticTrainer(ElasticTrainerMixin, Trainer):  # type: ignore[misc] # transformers is not followed
    """Hugging Face's Trainer over all ranks of a job: `ElasticTrainer(model, args, job=job, train_dataset=...)`."""
