"""Losses of transformers' own models that are means over something else than labels that are not -100."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import (
    SegformerConfig,
    SegformerForSemanticSegmentation,
    Trainer,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

import elastic_launcher.integrations.transformers as elastic

BATCH, MICRO, SAMPLES = 12, 5, 36


class InOrder(Trainer):  # type: ignore[misc] # transformers is not followed
    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class ElasticInOrder(elastic.ElasticTrainerMixin, InOrder):
    """The elastic Trainer, in the order of the samples."""


def segmentation() -> tuple[nn.Module, list[Any]]:
    """Returns a model, and images of which different parts count."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (SAMPLES, 8, 8), generator=generator)
    counts = torch.rand(SAMPLES, 8, 8, generator=generator) < torch.linspace(0.05, 1, SAMPLES)[:, None, None]
    images = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    dropped = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "drop_path_rate")
    config = SegformerConfig(num_labels=3, **sizes, **dict.fromkeys(dropped, 0.0))
    torch.manual_seed(0)
    model = SegformerForSemanticSegmentation(config)
    model.decode_head.batch_norm = nn.Identity()
    rows = torch.where(counts, labels, 255)
    return model, [{"pixel_values": image, "labels": row} for image, row in zip(images, rows, strict=True)]


def speech(reduction: str) -> tuple[nn.Module, list[Any]]:
    """Returns a model, and sounds with texts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(1, 8, (SAMPLES, 6), generator=generator)
    lengths = torch.arange(SAMPLES)[:, None] % 6 + 1
    texts = torch.where(torch.arange(6) < lengths, texts, -100)
    sounds = torch.randn(SAMPLES, 600, generator=generator)
    dropped = ("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout")
    config = Wav2Vec2Config(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8),
        conv_stride=(4, 4),
        conv_kernel=(8, 4),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        layerdrop=0.0,
        ctc_loss_reduction=reduction,
        **dict.fromkeys(dropped, 0.0),
    )
    torch.manual_seed(0)
    return Wav2Vec2ForCTC(config), [{"input_values": x, "labels": y} for x, y in zip(sounds, texts, strict=True)]


def trainer_of(made: tuple[nn.Module, list[Any]], folder: Path, kind: Any, **job: Any) -> Any:
    model, samples = made
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        optim="sgd",
        learning_rate=0.05,
        num_train_epochs=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return kind(model, args, train_dataset=samples, **job)


@pytest.mark.parametrize(
    "make", [pytest.param(segmentation, marks=pytest.mark.thorough), lambda: speech("mean")], ids=["pixels", "texts"]
)
def test_the_loss_is_that_of_the_whole_batch(make: Any, tmp_path: Path) -> None:
    plain = trainer_of(make(), tmp_path, InOrder)
    plain.train()
    ours = trainer_of(make(), tmp_path, ElasticInOrder, job=elastic.init(BATCH, MICRO))
    ours.train()
    losses, expected = ([log["loss"] for log in one.state.log_history if "loss" in log] for one in (ours, plain))
    assert losses == pytest.approx(expected, rel=2e-6)
    for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_sum_over_the_texts_of_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ctc_loss_reduction is 'sum'"):
        trainer_of(speech("sum"), tmp_path, ElasticInOrder, job=elastic.init(BATCH, MICRO)).train()
