"""What the launcher belongs to is stopped: the job is saved and over, whether or not anybody sends a signal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.ends import assert_saved_and_over
from tests.cluster.stage import NAME, Stage, staged
from tests.local.ledgers import SCRIPT
from tests.local.resizes import formed
from tests.local.sudden import options

DELETED = "what the step belongs to was deleted"
Act = Callable[[Stage], None]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "stops") as stage:
        yield stage


def changes(kind: str, name: str, spec: dict[str, object]) -> Act:
    def act(stage: Stage) -> None:
        patch = json.dumps({"spec": spec})
        stage.kubectl("patch", kind, name, f"--namespace={stage.space}", "--type=merge", f"--patch={patch}")

    return act


def deletes(kind: str, name: str) -> Act:
    return lambda stage: stage.delete(kind, name)


OF_JOBS = [
    pytest.param(deletes("job", NAME), DELETED, id="deleted"),
    pytest.param(changes("job", NAME, {"suspend": True}), f"Job {NAME} was suspended", id="suspended"),
]


@pytest.mark.parametrize(("act", "why"), OF_JOBS)
def test_a_job_ends_when_it_is_told_to(stage: Stage, act: Act, why: str) -> None:
    stage.launch("--nodes=2:2", script=SCRIPT, argument=options(stage.folder, pace=0.02), retries=0)
    formed(stage, 2, 0)
    act(stage)
    assert_saved_and_over(stage, why)
