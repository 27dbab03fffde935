"""How tests of losses and notices play a job, and what they prove of it when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.support.launches import Launcher, assert_no_process
from tests.support.ledgers import (
    assert_each_sample_once,
    assert_same_model,
    counted,
    read_ledgers,
    script_module,
    train_plain,
    without_lost,
)

SAMPLES, BATCH, MICRO = 97, 24, 5


def options(folder: Path, **more: Any) -> str:
    settings = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "pace": 0.004, **more}
    return json.dumps(settings)


def assert_same_training(folder: Path, job: Launcher) -> None:
    """Fails unless every sample was used once, and losses, rates and the final model are the plain ones."""
    ledgers = without_lost(read_ledgers(folder), job.events.all())
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    plain = train_plain(SAMPLES, BATCH, steps)
    assert_same_model(folder, plain)
    for step, rows in counted(ledgers).items():
        row = next(row for row in reversed(rows) if row["sync"])
        assert row["loss"] == pytest.approx(plain.losses[step], rel=1e-9)
        assert row["lr"] == pytest.approx(plain.rates[step], rel=1e-12)
    assert job.events.of("job_finished")[-1]["steps"] == steps
    assert_no_process(job.work_dir)


def assert_same_sums(folder: Path) -> None:
    """Fails unless each evaluation had one result on all ranks, over all samples, and the plain model's."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in folder.glob("sums-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["step"], []).append(row)
    assert all(row == rows[0] for rows in found.values() for row in rows), "ranks saw different results"
    assert all(rows[0]["count"] == SAMPLES for rows in found.values())
    script = script_module()
    data = script.Numbered(SAMPLES)
    for step in [step for step in (21, 28) if step in found]:
        model = train_plain(SAMPLES, BATCH, step).model
        loss = functional.cross_entropy(model(data.x), torch.tensor(data.y), reduction="sum")
        assert found[step][0]["loss"] == pytest.approx(loss.item(), rel=1e-9)
