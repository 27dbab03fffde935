"""What the loss of a micro-batch is a mean over."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

IGNORED = -100  # the label that does not count


class Weight:
    """Counts what a loss is divided by, for a Trainer's model and loss.

    Raises:
        ValueError: For a model whose own loss is a sum over the samples.
    """

    def __init__(self, trainer: Any) -> None:
        model = trainer.model
        if hasattr(model, "get_base_model"):  # of peft
            model = model.get_base_model()
        self._trainer = trainer
        self._shifts = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        smoother = trainer.label_smoother
        takes = smoother is None or "num_items_in_batch" in inspect.signature(type(smoother).__call__).parameters
        self._takes_items = takes and (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)
        config = getattr(model, "config", None) if smoother is None and trainer.compute_loss_func is None else None
        self._of_texts = config is not None and type(model).__name__.endswith("ForCTC")
        self._not_pixel = getattr(config, "semantic_loss_ignore_index", None)  # the label of pixels that do not count
        self._classes = getattr(config, "num_labels", None)
        if self._of_texts and getattr(config, "ctc_loss_reduction", None) == "sum":
            raise ValueError(
                f"the model's ctc_loss_reduction is 'sum': the loss of {type(model).__name__} would grow with the "
                "micro-batch; make the model with ctc_loss_reduction='mean', whose loss and gradient are smaller"
            )

    def of(self, batch: Any, items: Any) -> float | None:
        """Returns what the loss of a micro-batch is divided by, or None for its samples.

        Args:
            batch: The micro-batch.
            items: The Trainer's count of it, which the loss may be given.
        """
        labels = batch.get("labels") if hasattr(batch, "get") else None
        if self._of_texts:
            return None  # of each text the mean over its labels, and of these the mean
        if self._not_pixel is not None and isinstance(labels, torch.Tensor) and labels.ndim == 3:
            return float(labels.ne(self._not_pixel).sum()) if self._classes != 1 else None
        if self._takes_items and items is not None:
            return float(items)
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            return None
        return float((labels[..., 1:] if self._shifts and labels.ndim > 1 else labels).ne(IGNORED).sum())

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
