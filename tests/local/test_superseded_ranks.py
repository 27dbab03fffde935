"""A loss is seen by all that are left at once; whoever was given up and lives on touches nothing any more."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_launcher.checkpoint.folder import read_pointer
from tests.support.launches import launched, until
from tests.support.ledgers import SCRIPT, read_ledgers
from tests.support.losses import assert_same_training, options
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG, formed

HARNESS = SCRIPTS / "launcher.py"
STEP = 20


def reports(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def completed(ledger: Path) -> list[dict[str, Any]]:
    """Returns the rows of a rank whose steps were completed; one that stood still in a micro-batch may end that."""
    return [row for row in map(json.loads, ledger.read_text().split("\n")[:-1]) if row.get("sync")]


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
    """Each of them says that this step broke off in this group, and they are formed again in one attempt."""
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
    ("moment", "frozen", "hold", "saved_after"),
    [
        ("reduction", 1, STEP + 1, STEP),  # who saves in its place does so at once
        pytest.param("reduction", 3, STEP + 1, 0, marks=pytest.mark.thorough),
        # what it was about to save, the others have saved before it thaws
        pytest.param("saving", 1, 2 * STEP, STEP, marks=pytest.mark.thorough),
    ],
)
def test_a_frozen_peer_that_thaws_after_its_eviction_touches_nothing(
    tmp_path: Path, moment: str, frozen: int, hold: int, saved_after: int
) -> None:
    """It stands still in a reduction, or over a checkpoint; its kill never comes; it leaves by itself when it thaws.

    The others have completed that step by then, and wait at the beginning of a later one, so that whatever changes is
    its doing.
    """
    environment = {
        "ELASTIC_FAULT": f"freeze={moment}@{STEP}:{frozen}",
        "HARNESS_REPORTS": str(tmp_path / "reports.jsonl"),
        "HARNESS_SPARES": str(frozen),
    }
    every = ("--heartbeat-timeout", "3", "--checkpoint-every", "24 steps")
    arguments = ("--nodes", "3:3", *every, "--", SCRIPT, options(tmp_path, hold=hold, bits=True))
    (tmp_path / "save").touch()  # after the first step, so that there is one
    with launched(*arguments, cwd=tmp_path, environment=environment, program=(HARNESS,)) as job:
        lost = job.events.wait("node_lost", timeout=LONG)
        ledgers = {member: next(tmp_path.glob(f"ledger-{member}-*.jsonl")) for member in (1, 2, 3)}
        ledger = ledgers.pop(frozen)
        peer = psutil.Process(int(ledger.stem.split("-")[-1]))
        until(lambda: all(completed(one)[-1]["step"] == hold - 1 for one in ledgers.values()), "the others' step", LONG)
        saved = job.events.wait("checkpoint_saved", lambda one: one["step"] > saved_after, LONG)["step"]
        assert peer.status() == psutil.STATUS_STOPPED
        checkpoints = job.work_dir / "checkpoints"
        before = completed(ledger), files(checkpoints), read_pointer(checkpoints)
        os.kill(peer.pid, signal.SIGCONT)
        until(lambda: not peer.is_running() or peer.status() == psutil.STATUS_ZOMBIE, "the thawed peer leaves", LONG)
        assert (completed(ledger), files(checkpoints), read_pointer(checkpoints)) == before
        (tmp_path / "go").touch()
        job.events.wait("checkpoint_saved", lambda one: one["step"] > hold, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert lost["member"] == frozen
    assert before[-1][0] == f"step-{saved:08d}"
    assert_same_training(tmp_path, job)
    assert_bit_equal(tmp_path, set(ledgers))


@pytest.mark.thorough
def test_another_rank_saves_where_the_first_one_dies_after_it_has_agreed_to_stop(tmp_path: Path) -> None:
    arguments = ("--nodes", "3:3", "--checkpoint-every", "1h", "--", SCRIPT, options(tmp_path))
    with launched(*arguments, cwd=tmp_path, environment={"ELASTIC_FAULT": "halt@0:1"}) as job:
        formed(job, 3, 0)
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.wait(LONG) == 75, job.stderr
    saved, finished = job.events.of("checkpoint_saved"), job.events.of("job_finished")[0]
    assert [event["step"] for event in saved] == [finished["steps"]]
    assert [event["node"] for event in job.events.of("node_lost")] == [1]


def assert_bit_equal(folder: Path, survivors: set[int]) -> None:
    """Fails unless all ranks had the same model and optimizer after each step, and the survivors began the next one
    with these.
    """
    rows = [row for ledger in read_ledgers(folder) for row in ledger if row["rank"] is not None]
    after: dict[int, set[str]] = {}
    for row in rows:
        if row["sync"]:
            after.setdefault(row["step"], set()).add(row["bits"])
    assert [step for step, bits in after.items() if len(bits) != 1] == []
    assert len({*map(frozenset, after.values())}) == len(after), "a step changed nothing"
    for row in rows:
        if row["member"] in survivors and row["step"]:
            assert {row["before"]} == after[row["step"] - 1], row
