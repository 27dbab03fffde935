"""What trl's SFTTrainer collects of each batch, to log it: its own entropy, accuracy and count of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from elastic_launcher.integrations.transformers.weight import IGNORED
from elastic_launcher.torch import Job

MEANS = ("entropy", "mean_token_accuracy")  # over the tokens that are predicted
TOTAL = "num_tokens"  # of all steps so far

T = TypeVar("T")


def collects_token_metrics(trainer: Any) -> bool:
    """Returns whether a Trainer is trl's SFTTrainer."""
    return any(one.__name__ == "SFTTrainer" and one.__module__.startswith("trl.") for one in type(trainer).__mro__)


class TokenMetrics:
    """Makes of what the forward passes of a step have collected on all ranks what one process collects of its batch.

    A loss of the script's own, in a subclass, may collect nothing: then nothing is made of it.

    Args:
        trainer: The Trainer; its `_metrics` hold what is logged next.
        job: The job.
    """

    def __init__(self, trainer: Any, job: Job) -> None:
        self._trainer = trainer
        # last: micro-batches that have collected something, predicted tokens, all tokens
        self._sums = torch.zeros(len(MEANS) + 3, dtype=torch.float64, device=job.device)
        self._before = self._sums.to("cpu", copy=True)  # the sums when the step began
        self._predicted = self._sums[-2].clone()  # tokens of the micro-batch
        job.track({"transformers.token_metrics": self._sums}, op="sum")

    def begin(self, batch: Any) -> None:
        """Counts the tokens of a micro-batch, padding left out."""
        if "labels" in batch:
            self._predicted = batch["labels"][..., 1:].ne(IGNORED).sum().to(self._sums)
        if "attention_mask" in batch:
            self._sums[-1] += batch["attention_mask"].sum().to(self._sums)
        elif "position_ids" in batch:  # the rows of a padding-free batch stand in one
            self._sums[-1] += batch["position_ids"].size(1)

    def add(self) -> None:
        """Takes what the forward pass of the micro-batch has collected; call it before the backward pass."""
        collected = self._trainer._metrics["train"]
        if not all(collected.get(name) for name in MEANS):
            return
        for place, name in enumerate(MEANS):
            self._sums[place] += collected[name].pop() * self._predicted
        self._sums[-3] += 1
        self._sums[-2] += self._predicted

    def end_step(self) -> None:
        """Collects a step whose gradient is there."""
        now = self._sums.cpu()
        *sums, _, predicted, _ = (now - self._before).tolist()
        self._before = now.clone()
        if not now[-3]:
            return
        collected = self._trainer._metrics["train"]
        for name, found in zip(MEANS, sums, strict=True):
            collected[name].append(found / predicted if predicted else 0.0)
        self._trainer._total_train_tokens = int(now[-1])
        collected[TOTAL] = [int(now[-1])]

    def state_dict(self) -> dict[str, Any]:
        """Returns what is remembered between steps."""
        collected = self._trainer._metrics["train"]
        return {
            "before": self._before.tolist(),
            "collected": {name: list(collected[name]) for name in (*MEANS, TOTAL) if name in collected},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned."""
        self._before = torch.tensor(state["before"], dtype=torch.float64)
        collected = self._trainer._metrics["train"]
        collected.clear()
        collected.update({name: list(values) for name, values in state["collected"].items()})
        self._trainer._total_train_tokens = int(self._before[-1])

    def of_evaluation(self, predict: Callable[[], T]) -> tuple[T, dict[str, torch.Tensor]]:
        """Returns what the prediction of a batch returns, and what it has collected, which is then not kept."""
        metrics = self._trainer._metrics
        kept, metrics["eval"] = metrics["eval"], defaultdict(list)
        try:
            result = predict()
            return result, {name: torch.tensor(values[-1]).double() for name, values in metrics["eval"].items()}
        finally:
            metrics["eval"] = kept

    def collect_evaluation(self, found: Mapping[str, torch.Tensor]) -> None:
        """Collects what the prediction of a batch, on any rank, has collected."""
        collected = self._trainer._metrics["eval"]
        for name, value in found.items():
            collected[name] = [*(collected[name] if name != TOTAL else ()), float(value)]
