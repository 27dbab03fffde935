"""With `deterministic=` a training comes to the same bits in each step: alone, on several ranks, through resizes and
losses, and after a stop.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launches import launched, until
from tests.support.plays import resize
from tests.support.resizes import LONG, formed

SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "deterministic_train.py"
THREADS = {"OMP_NUM_THREADS": "1"}


def options(folder: Path, **more: Any) -> str:
    return json.dumps({"folder": str(folder), **more})


def rows_of(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Returns what the ranks have written down, by step; what they evaluated under its negative."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in folder.glob("ledger-*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(-row["step"] if "evaluated" in row else row["step"], []).append(row)
    return found


def run(command: list[str], folder: Path, **more: Any) -> dict[int, list[dict[str, Any]]]:
    """Runs the script without our launcher, and returns what it wrote."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
    done = subprocess.run(
        [*command, str(SCRIPT), options(folder, **more)],
        cwd=folder,
        env=environment | THREADS,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    return rows_of(folder)


def assert_same_bits(folder: Path, sizes: set[int], **more: Any) -> None:
    """Fails unless each step that was done in ``folder``, at these sizes, came to the bits of one process alone."""
    found = rows_of(folder)
    steps = max(found)
    assert sorted(step for step in found if step > 0) == list(range(1, steps + 1))
    assert sizes <= {row["world_size"] for rows in found.values() for row in rows if "digest" in row}
    alone = run([sys.executable], folder / "alone", steps=steps, **more)
    for step, rows in found.items():
        for name in ("digest", "evaluated"):
            values = {row[name] for row in rows if name in row}
            assert values <= {row[name] for row in alone.get(step, ()) if name in row}, f"{name} of step {step}"
        if step > 0:  # a rank that lost a reduction which the others have had does not know its loss
            assert alone[step][0]["loss"] in [row["loss"] for row in rows], f"loss of step {step}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("world_size", "half"),
    [(2, False), (3, True), (4, False)],
)
def test_ranks_of_torchrun_come_to_the_bits_of_one_process(world_size: int, half: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    run(command, tmp_path / "ranks", steps=20, half=half)
    assert_same_bits(tmp_path / "ranks", {world_size}, half=half)


def test_resizes_leave_no_trace_in_the_bits(tmp_path: Path) -> None:
    script = options(tmp_path, pace=0.02, workers=1, virtual=6)  # ranks send one sum each on 3, two on 1 and 2
    resize(SCRIPT, script, tmp_path, THREADS)
    assert_same_bits(tmp_path, {1, 3, 2}, virtual=6)


@pytest.mark.parametrize(
    "fault",
    [
        "reduction@20:3",
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in ("micro-batch@20:1", "reduced@20:2", "step@20:1", "stepped@20:2")
        ),
    ],
)
def test_losses_leave_no_trace_in_the_bits(fault: str, tmp_path: Path) -> None:
    script, environment = options(tmp_path, pace=0.02), THREADS | {"ELASTIC_FAULT": fault}
    with launched("--nodes", "3:3", "--", SCRIPT, script, cwd=tmp_path, environment=environment) as job:
        until(lambda: job.events.of("node_lost"), "a node is lost", LONG)
        formed(job, 3, 2)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_bits(tmp_path, {3, 2})


@pytest.mark.thorough
def test_a_stop_leaves_no_trace_in_the_bits_and_other_virtual_ranks_do_not_go_on_from_there(tmp_path: Path) -> None:
    script, generation = options(tmp_path, pace=0.02), 0
    for nodes in (2, 3):
        with launched("--nodes", f"{nodes}:{nodes}", "--", SCRIPT, script, cwd=tmp_path, environment=THREADS) as job:
            generation = formed(job, nodes, generation)["generation"]
            job.process.send_signal(signal.SIGTERM)
            assert job.wait(LONG) == 75, job.stderr
    with launched("--nodes", "1:1", "--", SCRIPT, script, cwd=tmp_path, environment=THREADS | {"VIRTUAL": "3"}) as job:
        assert job.wait(LONG) != 0
        assert "deterministic= (virtual ranks 3, max_batch_per_gpu 4), and " in job.stderr
    with launched("--nodes", "1:1", "--", SCRIPT, script, cwd=tmp_path, environment=THREADS) as job:
        formed(job, 1, generation)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_bits(tmp_path, {1, 2, 3})
