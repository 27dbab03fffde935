"""The adapter of docs/training-script.md trains as the plain loop does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.places import ROOT
from tests.support.step_indices import step_indices

SAMPLES, BATCH, EPOCHS, SEED = 203, 24, 3, 7


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_the_example_trains_the_plain_model_and_counts_its_hits() -> None:
    page = (ROOT / "docs/training-script.md").read_text(encoding="utf-8")
    example = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ElasticTrainer" in block)
    torch.manual_seed(5)
    found: dict[str, Any] = {}
    exec(compile(example, "docs/training-script.md", "exec"), found)
    torch.manual_seed(5)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, hits = found["inputs"], 0
    labels = inputs[:, :3].argmax(1)
    for epoch in range(EPOCHS):
        hits = 0
        for step in range(-(-SAMPLES // BATCH)):
            taken = step_indices(SAMPLES, BATCH, SEED, epoch, step, True, False)
            logits = model(inputs[taken])
            hits += int((logits.argmax(1) == labels[taken]).sum())
            optimizer.zero_grad()
            functional.cross_entropy(logits, labels[taken]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert int(found["trainer"].hits) == hits > 0
    for name, values in model.state_dict().items():
        assert found["model"].state_dict()[name].numpy() == pytest.approx(values.numpy(), rel=1e-9), name
