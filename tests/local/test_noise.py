"""The gradient noise is measured alike on all ranks, and through resizes, a lost node and a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from elastic_launcher.adaptive.noise import NoiseAverages
from tests.support.launches import assert_no_process, launched
from tests.support.places import SCRIPTS
from tests.support.quadratics import EVERYTHING, assert_known, elements
from tests.support.resizes import LONG, allow, formed

SCRIPT = SCRIPTS / "noise_train.py"
MICRO = 7


def read_rows(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Returns what each rank wrote after each step, by step."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for path in folder.glob("averages-*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            row = json.loads(line)
            rows.setdefault(row["step"], []).append(row)
    return rows


def assert_one_history(folder: Path, fewest: int) -> None:
    """Fails unless all ranks had the same averages after each step, none is missing, and they agree with the closed
    form.
    """
    rows = read_rows(folder)
    assert sorted(rows) == list(range(1, len(rows) + 1))
    different = [step for step, same in rows.items() if any(one["averages"] != same[0]["averages"] for one in same)]
    assert different == []
    history = [[float.fromhex(number) for number in rows[step][0]["averages"]] for step in sorted(rows)]
    weights = [numbers[2] for numbers in history]
    assert weights == sorted(weights) and len(set(weights)) >= len(weights) - 2, "a step is missing"
    averages = [NoiseAverages.from_numbers(numbers) for numbers in history]
    assert_known(averages, None, EVERYTHING, fewest)
    assert_known(averages, 1, elements(1, 3), fewest)


def test_averages_survive_lost_reductions_and_nodes(tmp_path: Path) -> None:
    """Member 1 loses a reduction that its peers have completed; member 2 is killed before one, and replaced."""
    faults = {"ELASTIC_FAULT": "break=reduced@20:1,reduction@40:2"}
    arguments = ("--nodes", "2:3", "--", SCRIPT, tmp_path, MICRO)
    with launched(*arguments, cwd=tmp_path, environment=faults) as job:
        job.events.wait("node_lost", timeout=LONG)
        job.events.wait("progress", lambda event: event["step"] > 250, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert len(job.events.of("generation_formed")) >= 3
    assert_one_history(tmp_path, 200)
    assert_no_process(job.work_dir)


def test_averages_go_through_resizes_and_a_checkpoint(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    arguments = ("--nodes", "1:3", "--hints", hints, "--", SCRIPT, tmp_path, MICRO)
    with launched(*arguments, cwd=tmp_path) as job:
        last = formed(job, 1, 0)
        for size in (3, 2):
            allow(hints, size)
            last = formed(job, size, last["generation"])
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    stopped = job.events.of("job_finished")[-1]["steps"]
    allow(hints, 1)
    with launched(*arguments, cwd=tmp_path) as job:
        job.events.wait("progress", lambda event: event["step"] > stopped + 100, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("job_started")[-1]["resumed_step"] == stopped
    assert_one_history(tmp_path, 100)
    assert_no_process(job.work_dir)
