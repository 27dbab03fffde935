"""A loss is seen by all that are left at once; whoever was given up and lives on touches nothing any more."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.local.ledgers import SCRIPT, read_ledgers
from tests.local.resizes import LONG, formed
from tests.local.sudden import assert_same_training, options
from tests.support import launched, until

HARNESS = Path(__file__).parent / "scripts" / "launcher.py"
STEP = 20


def reports(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def completed(ledger: Path) -> list[dict[str, Any]]:
    """Returns the rows of a rank whose steps were completed; one that stood still in a micro-batch may end that."""
    return [row for row in map(json.loads, ledger.read_text().splitlines()) if row.get("sync")]


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns all that is in a folder, with sizes and times."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[str(path)] = status.st_size, status.st_mtime_ns
    return found


@pytest.mark.parametrize("killed", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_one_kill_among_five_is_seen_by_all_four_at_once(tmp_path: Path, killed: int) -> None:
    """Each of them says that this step broke off in this group, and they are formed anew in one attempt."""
    environment = {"ELASTIC_FAULT": f"reduction@{STEP}:{killed}", "HARNESS_REPORTS": str(tmp_path / "reports.jsonl")}
    arguments = ("--nodes", "5:5", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment=environment, program=(HARNESS,)) as job:
        event = formed(job, 4, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    first = reports(tmp_path, "active")[0]["formation"]
    said = [row for row in reports(tmp_path, "step_failed") if row["formation"] == first]
    assert sorted(row["member"] for row in said) == [number for number in range(1, 6) if number != killed]
    assert {row["step"] for row in said} == {STEP}
    assert not any("timed out" in row["error"].lower() or "timeout" in row["error"].lower() for row in said), said
    assert event["formation"] == first + 1 and reports(tmp_path, "form_failed") == []
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize(
    ("moment", "frozen"), [("reduction", 1), pytest.param("reduction", 3, marks=pytest.mark.thorough), ("saving", 1)]
)
def test_a_frozen_peer_that_thaws_after_its_eviction_touches_nothing(tmp_path: Path, moment: str, frozen: int) -> None:
    """It stands still in a reduction, or over a checkpoint; its kill never comes; it leaves by itself when it thaws."""
    environment = {
        "ELASTIC_FAULT": f"freeze={moment}@{STEP}:{frozen}",
        "HARNESS_REPORTS": str(tmp_path / "reports.jsonl"),
        "HARNESS_SPARES": str(frozen),
    }
    every = ("--heartbeat-timeout", "3", "--checkpoint-every", "12 steps")
    arguments = ("--nodes", "3:3", *every, "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment=environment, program=(HARNESS,)) as job:
        formed(job, 3, 0)
        pids = {member["member"]: member["pid"] for node in job.status()["nodes"] for member in node["members"]}
        peer = psutil.Process(pids[frozen])
        lost = job.events.wait("node_lost", timeout=LONG)
        event = formed(job, 2, 1)
        job.events.wait("checkpoint_saved", lambda one: one["step"] > event["first_step"], LONG)
        assert peer.status() == psutil.STATUS_STOPPED
        ledger = tmp_path / f"ledger-{frozen}-{peer.pid}.jsonl"
        before = completed(ledger)
        os.kill(peer.pid, signal.SIGCONT)
        until(lambda: not peer.is_running() or peer.status() == psutil.STATUS_ZOMBIE, "the thawed peer leaves", LONG)
        saved = max(one["step"] for one in job.events.of("checkpoint_saved"))
        job.events.wait("checkpoint_saved", lambda one: one["step"] > saved, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert lost["member"] == frozen
    assert completed(ledger) == before
    steps = [one["step"] for one in job.events.of("checkpoint_saved")]
    assert steps == sorted(set(steps)), "the pointer to the last checkpoint went back"
    drafts = [name for name in files(job.work_dir / "checkpoints") if f".tmp-{pids[frozen]}-" in name]
    assert drafts == []
    assert_same_training(tmp_path, job)
    assert_bit_equal(tmp_path)


def test_another_rank_saves_where_the_first_one_dies_after_it_has_agreed_to_stop(tmp_path: Path) -> None:
    arguments = ("--nodes", "3:3", "--checkpoint-every", "1h", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": "halt@0:1"}) as job:
        formed(job, 3, 0)
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    saved, finished = job.events.of("checkpoint_saved"), job.events.of("job_finished")[0]
    assert [event["step"] for event in saved] == [finished["steps"]]
    assert [event["node"] for event in job.events.of("node_lost")] == [1]


def assert_bit_equal(folder: Path) -> None:
    """Fails unless all ranks have the same loss after each step, and all survivors the same rates."""
    found: dict[int, set[tuple[float, float]]] = {}
    for rows in read_ledgers(folder):
        for row in rows:
            if row["sync"]:
                found.setdefault(row["step"], set()).add((row["loss"], row["norm"]))
    assert [step for step, values in found.items() if len(values) != 1] == []
