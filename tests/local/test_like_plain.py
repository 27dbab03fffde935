"""Where it takes real processes: a compiled model and loader workers train like the plain loop in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.compiler import COMPILER, HEADER
from tests.support.launches import assert_no_process, launched
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, counted, read_ledgers, train_plain

SAMPLES, BATCH, MICRO, EPOCHS = 101, 22, 4, 2  # shares of 11 samples, micro-batches of 4, 4 and 3, a tail of 13
LONG = 240.0  # a compile takes a minute on a machine that does other things too


def assert_trains_like_plain(folder: Path, environment: dict[str, str] | None = None, **more: object) -> None:
    """Trains on two ranks, and fails unless it was the plain training in eager mode."""
    options = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "epochs": EPOCHS, **more}
    nodes = ["--nodes", "2:2", "--start-timeout", str(LONG)]
    with launched(*nodes, "--", SCRIPT, json.dumps(options), cwd=folder, environment=environment) as job:
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    ledgers = read_ledgers(folder)
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    assert steps == EPOCHS * 5
    plain = train_plain(SAMPLES, BATCH, steps)
    assert_same_model(folder, plain)  # compiled code too: in float64 another order of sums is worth 1e-15
    for step, rows in counted(ledgers).items():
        assert rows[-1]["loss"] == pytest.approx(plain.losses[step], rel=1e-9)


@pytest.mark.thorough
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler: install g++, or name one in CXX")
@pytest.mark.skipif(not HEADER.exists(), reason=f"torch.compile needs Python's headers: there is no {HEADER}")
def test_a_compiled_model_with_accumulation_and_two_loader_workers(tmp_path: Path) -> None:
    cache = tmp_path / "inductor"
    assert_trains_like_plain(tmp_path, {"TORCHINDUCTOR_CACHE_DIR": str(cache)}, compile=True, workers=2)
    assert list(cache.rglob("*.so")), "nothing was compiled"


@pytest.mark.thorough
def test_three_loader_workers(tmp_path: Path) -> None:
    assert_trains_like_plain(tmp_path, workers=3)
