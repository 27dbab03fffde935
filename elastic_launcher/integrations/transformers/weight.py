"""What the loss of a micro-batch is a mean over."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

IGNORED = -100  # the label that does not count


class Weight:
    """Counts what a loss is divided by, for a Trainer's model and loss."""

    def __init__(self, trainer: Any) -> None:
        model = trainer.model
        if hasattr(model, "get_base_model"):  # of peft
            model = model.get_base_model()
        self._trainer = trainer
        self._shifts = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        smoother = trainer.label_smoother
        takes = smoother is None or "num_items_in_batch" in inspect.signature(type(smoother).__call__).parameters
        self._takes_items = takes and (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)

    def of(self, batch: Any, items: Any) -> float | None:
        """Returns what the loss of a micro-batch is divided by, or None for its samples.

        Args:
            batch: The micro-batch.
            items: The Trainer's count of it, which the loss may be given.
        """
        if self._takes_items and items is not None:
            return float(items)
        labels = batch.get("labels") if hasattr(batch, "get") else None
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point() or labels.ndim < 2:
            return None
        return float((labels[..., 1:] if self._shifts else labels).ne(IGNORED).sum())

    def tokens(self, batch: Any) -> int:
        """Returns how many input tokens the Trainer counts in a micro-batch."""
        trainer = self._trainer
        inputs = batch.get(getattr(trainer.model, "main_input_name", "input_ids")) if hasattr(batch, "get") else None
        if inputs is None or trainer.args.include_num_input_tokens_seen in ("no", False):
            return 0
        if trainer.args.include_num_input_tokens_seen == "non_padding":
            if "attention_mask" in batch:
                return int(batch["attention_mask"].sum())
            padding = getattr(trainer.processing_class, "pad_token_id", None)
            if padding is not None:
                return int((inputs != padding).sum())
        return int(inputs.numel())
