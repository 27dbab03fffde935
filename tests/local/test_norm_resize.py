"""Batch norm through resizes: its statistics follow the history of world sizes, which the events tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.launches import launched
from tests.support.ledgers import SCRIPT, assert_same_model, counted, read_ledgers, train_plain
from tests.support.reference_step import replay_step
from tests.support.resizes import LONG, allow, formed

SAMPLES, BATCH, MICRO = 97, 24, 5  # the tail is one sample: all ranks but one have none


@pytest.mark.thorough
def test_batch_norm_follows_the_history_of_world_sizes(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    options = {"samples": SAMPLES, "batch": BATCH, "micro": MICRO, "folder": str(tmp_path), "norm": True, "pace": 0.004}
    with launched("--nodes", "1:3", "--hints", hints, "--", SCRIPT, json.dumps(options), cwd=tmp_path) as job:
        last = formed(job, 1, 0)
        for size in (3, 2):
            allow(hints, size)
            last = formed(job, size, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        history = [(event["first_step"], len(event["members"])) for event in job.events.of("generation_formed")]
    sizes = iter([size for _, size in history])
    assert all(size in sizes for size in (1, 3, 2)), history
    rows = counted(read_ledgers(tmp_path))

    def backward(model: nn.Module, loss: Callable[[slice], torch.Tensor], count: int, step: int) -> float:
        world_size = [size for first_step, size in history if first_step <= step][-1]
        return replay_step(model, loss, count, world_size, MICRO)

    plain = train_plain(SAMPLES, BATCH, len(rows), norm=True, backward=backward)
    assert_same_model(tmp_path, plain)
    for step, loss in enumerate(plain.losses):
        assert abs(rows[step][-1]["loss"] - loss) < 1e-9, f"step {step}"
