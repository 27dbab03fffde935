"""Small transformers from configurations, with data, for the Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

BATCH, MICRO = 24, 5
SAMPLES, WORDS, LENGTH = 203, 32, 8
DROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "tokens": {
        "lr_scheduler_type": "cosine",
        "learning_rate": 0.01,
        "warmup_steps": 3,
        "eval_strategy": "epoch",
        "logging_steps": 2,
    },
    "classes": {"max_grad_norm": 0.1, "optim": "sgd", "learning_rate": 0.1, "eval_strategy": "steps", "eval_steps": 4},
    "lora": {"learning_rate": 0.01, "logging_strategy": "epoch"},
    "smoothed": {"optim": "sgd", "learning_rate": 0.1, "label_smoothing_factor": 0.1, "logging_steps": 1},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 10.0},
        "metric_for_best_model": "loss",
        "learning_rate": 0.01,
        "eval_strategy": "epoch",
    },
}
KINDS = tuple(ARGUMENTS)


@contextmanager
def in_float64() -> Iterator[None]:
    """Trains in float64, and in one thread: for models so small, several would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


class Texts(Dataset[Any]):
    """Made tokens, of which a different number counts in each sample."""

    def __init__(self, kind: str, samples: int = SAMPLES, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, WORDS, (samples, LENGTH), generator=generator)
        counted = torch.randint(2, LENGTH + 1, (samples, 1), generator=generator)
        self.labels = torch.where(torch.arange(LENGTH) < counted, self.words, -100)
        if kind == "classes":
            self.labels = self.words[:, 0] % 3

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.words[index],
            "attention_mask": torch.ones(LENGTH, dtype=torch.int64),
            "labels": self.labels[index],
        }


def token_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Returns the mean over tokens in float64: the models' own losses are in float32."""
    logits, labels = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return total / (num_items_in_batch if num_items_in_batch is not None else labels.ne(-100).sum())


def class_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return functional.cross_entropy(outputs.logits, labels)


def build(kind: str) -> nn.Module:
    """Returns a model in torch's default type."""
    torch.manual_seed(3)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=WORDS, n_positions=LENGTH, **DROPPED)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    if kind == "classes":
        config.num_labels = 3
        return GPT2ForSequenceClassification(config).to(torch.get_default_dtype())
    model = GPT2LMHeadModel(config).to(torch.get_default_dtype())
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True))
    return model


class InOrderTrainer(Trainer):  # type: ignore[misc] # transformers is not followed
    """The plain Trainer, in the order of the samples: the job's own shuffle is another one than torch's."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class Ends(TrainerCallback):  # type: ignore[misc] # transformers is not followed
    """Ends a training after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._step:
            control.should_training_stop = True


def train_plain(kind: str, folder: Path, epochs: int, steps: int = 0, **arguments: Any) -> Any:
    """Trains in one process as transformers alone does, with the global batch; returns the Trainer."""
    trainer = make(kind, folder, callbacks=[Ends(steps)], num_train_epochs=epochs, **arguments)
    trainer.train()
    trainer.evaluate()
    return trainer


def make(kind: str, folder: Path, trainer: Any = InOrderTrainer, callbacks: Any = (), **options: Any) -> Any:
    """Returns a Trainer of a kind; ``options`` are those of TrainingArguments, and ``job`` of an elastic one."""
    job = {"job": options.pop("job")} if "job" in options else {}
    resumes = {"save_strategy": "no", **ARGUMENTS[kind], **options}
    stop = [EarlyStoppingCallback(2)] if resumes.get("load_best_model_at_end") else []
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=7,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        include_num_input_tokens_seen=True,
        **{"logging_steps": 3, **resumes},
    )
    losses = {"classes": class_loss, "tokens": token_loss, "lora": token_loss, "plateau": token_loss}
    return trainer(
        build(kind),
        args,
        train_dataset=Texts(kind),
        eval_dataset=Texts(kind, 31, 2),
        compute_loss_func=losses.get(kind),
        compute_metrics=accuracy,
        callbacks=[*stop, *callbacks],
        **job,
    )


def accuracy(predictions: Any) -> dict[str, float]:
    logits, labels = predictions
    if labels.ndim == 2:
        logits, labels = logits[:, :-1], labels[:, 1:]
    counts = labels != -100
    return {"accuracy": float((logits.argmax(-1) == labels)[counts].mean())}


CLOCK = ("_runtime", "_per_second", "_preparation_time")


def history(trainer: Any) -> list[dict[str, float]]:
    """Returns what was logged, without the times; transformers 4 rounds the loss."""
    logs = [{k: v for k, v in one.items() if not k.endswith(CLOCK)} for one in trainer.state.log_history]
    if transformers.__version__.startswith("4."):
        logs = [one | {"loss": round(one["loss"], 4)} if "loss" in one else one for one in logs]
    return logs
