"""Small models with text for trl's SFTTrainer, and its training in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from tests.support.transformers_models import BATCH, DROPPED, SAMPLES, WORDS, Ends, token_loss

SFTTrainer._send_telemetry = lambda _: None  # tests tell nobody
LONGEST = 12
ARGUMENTS: dict[str, dict[str, Any]] = {
    "sft": {"pad_to_multiple_of": LONGEST, "eval_strategy": "epoch", "gradient_checkpointing": True},
    "sft_completions": {"eval_strategy": "steps", "eval_steps": 4},
    "sft_packed": {"packing": True, "eval_strategy": "epoch"},
    "sft_lora": {"pad_to_multiple_of": LONGEST, "logging_strategy": "epoch"},
    "sft_dft": {
        "loss_type": "dft",
        "pad_to_multiple_of": LONGEST,
        "optim": "sgd",  # in float32 Adam makes much of gradients that are nothing but rounding
        "learning_rate": 0.1,
        "logging_steps": 1,
    },
}
PADDED = ("sft_completions",)
"""Kinds whose batches are filled up to their longest sample."""
FLOAT32 = 1e-5
"""What trl's own loss, and its entropy, are equal within: it computes them in float32."""


def assert_same_logs(ours: list[dict[str, float]], plain: list[dict[str, float]], kind: str) -> None:
    """Fails unless all that was logged is that of one process."""
    assert len(ours) == len(plain)
    for logs, expected in zip(ours, plain, strict=True):
        assert logs.keys() == expected.keys()
        for name, value in expected.items():
            if name != "total_flos" or kind not in PADDED:  # which count padding
                rel = FLOAT32 if "entropy" in name or kind == "sft_dft" else 1e-9
                assert logs[name] == pytest.approx(value, rel=rel, abs=1e-12), (name, expected)


def texts(kind: str, samples: int, seed: int) -> Dataset:
    """Returns made text: as a prompt with its completion where only that counts."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(samples):
        length = int(torch.randint(4, LONGEST, (), generator=generator))
        rows.append([f"w{word}" for word in torch.randint(0, WORDS, (length,), generator=generator).tolist()])
    if kind != "sft_completions":
        return Dataset.from_dict({"text": [" ".join(row) for row in rows]})
    cuts = torch.randint(1, 4, (samples,), generator=generator).tolist()
    return Dataset.from_dict(
        {
            "prompt": [" ".join(row[:cut]) for row, cut in zip(rows, cuts, strict=True)],
            "completion": [" " + " ".join(row[cut:]) for row, cut in zip(rows, cuts, strict=True)],
        }
    )


def tokenizer() -> PreTrainedTokenizerFast:
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    words = [f"w{number}" for number in range(WORDS)] + list(special.values())
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def make(kind: str, folder: Path, trainer: Any = SFTTrainer, callbacks: Any = (), **options: Any) -> Any:
    """Returns an SFTTrainer of a kind; ``options`` are those of SFTConfig, and ``job`` of an elastic one."""
    job = {"job": options.pop("job")} if "job" in options else {}
    torch.manual_seed(3)
    size = WORDS + 3
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=size, n_positions=2 * LONGEST, **DROPPED)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = WORDS
    args = SFTConfig(
        str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=7,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        max_length=2 * LONGEST,
        train_sampling_strategy="sequential",
        **{
            "save_strategy": "no",
            "learning_rate": 0.01,
            "logging_steps": 2,
            "gradient_checkpointing": False,
            **ARGUMENTS[kind],
            **options,
        },
    )
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    return trainer(
        GPT2LMHeadModel(config).to(torch.get_default_dtype()),
        args,
        train_dataset=texts(kind, SAMPLES, 1),
        eval_dataset=texts(kind, 31, 2),
        processing_class=tokenizer(),
        compute_loss_func=None if kind == "sft_dft" else token_loss,
        peft_config=lora if kind == "sft_lora" else None,
        callbacks=list(callbacks),
        **job,
    )


def train_plain(kind: str, folder: Path, epochs: int, steps: int = 0, **arguments: Any) -> Any:
    """Trains in one process as trl alone does, with the global batch; returns the Trainer."""
    trainer = make(kind, folder, callbacks=[Ends(steps)], num_train_epochs=epochs, **arguments)
    trainer.train()
    trainer.evaluate()
    return trainer
