"""trl's SFTTrainer in one process: what trl alone does with whole batches, its own logs included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars, enable_progress_bars

import elastic_launcher.integrations.transformers as elastic
from elastic_launcher.torch import Job
from tests.support.thorough import thorough_but
from tests.support.transformers_models import BATCH, MICRO, history, in_float64, token_loss
from tests.support.trl_models import SFTTrainer, assert_same_logs, make, train_plain


class ElasticSFTTrainer(elastic.ElasticTrainerMixin, SFTTrainer):  # type: ignore[misc] # trl is not followed
    """trl's Trainer over all ranks."""


class OwnLoss(SFTTrainer):  # type: ignore[misc]
    """trl's Trainer with a loss of its own, as trl advises; it collects nothing."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        loss = token_loss(outputs, inputs["labels"], num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class ElasticOwnLoss(elastic.ElasticTrainerMixin, OwnLoss):
    """That one over all ranks."""


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    disable_progress_bars()
    with in_float64():
        yield
    enable_progress_bars()


@pytest.fixture
def job() -> Job:
    return elastic.init(BATCH, MICRO)


@pytest.mark.parametrize("kind", thorough_but(["sft", "sft_completions", "sft_packed"], "sft_packed"))
def test_accumulating_equals_whole_batches_of_trl(kind: str, job: Job, tmp_path: Path) -> None:
    trainer = make(kind, tmp_path, ElasticSFTTrainer, job=job, num_train_epochs=1)
    trainer.train()
    trainer.evaluate()
    plain = train_plain(kind, tmp_path, 1)
    for name, theirs in plain.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], theirs, rtol=0, atol=1e-9, msg=name)
    assert_same_logs(history(trainer), history(plain), kind)


def test_tokens_of_micro_batches_in_which_none_counts_are_counted(job: Job, tmp_path: Path) -> None:
    ours = make("sft", tmp_path, ElasticSFTTrainer, job=job, num_train_epochs=1)
    plain = make("sft", tmp_path, num_train_epochs=1)
    for one in (ours, plain):
        rows = one.train_dataset.to_list()
        for row in rows[MICRO : 2 * MICRO]:
            row["labels"] = [-100] * len(row["labels"])
        one.train_dataset = Dataset.from_list(rows)
        one.train()
    assert_same_logs(history(ours), history(plain), "sft")


def test_a_loss_of_a_script_that_collects_nothing(job: Job, tmp_path: Path) -> None:
    ours = make("sft", tmp_path, ElasticOwnLoss, job=job, num_train_epochs=1)
    plain = make("sft", tmp_path, OwnLoss, num_train_epochs=1)
    for one in (ours, plain):
        one.train()
    assert_same_logs(history(ours), history(plain), "sft")
