"""What a job's Service keeps of it for a launcher that finds no work directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.launcher.cluster.status_writer import ToldStatus, numbers_after
from elastic_launcher.report.state import JobState, NodeState
from elastic_launcher.workdir import Layout
from tests.support import histories


@pytest.mark.parametrize(
    ("job", "nodes", "node", "member"),
    [
        ({}, [], 1, 1),
        ({"first_node": 8, "first_member": 15}, [], 8, 15),
        ({"first_node": 8, "first_member": 15}, [NodeState(8, (15, 16), "left")], 9, 17),
        ({}, [NodeState(1, (1,), "lost"), NodeState(2, (2,), "training")], 3, 3),
    ],
)
def test_no_number_is_forgotten_with_its_node(job: Any, nodes: list[NodeState], node: int, member: int) -> None:
    state = JobState(nodes={one.node: one for one in nodes})
    assert numbers_after(state, job) == {"node": node, "member": member}


@pytest.mark.parametrize(
    ("earlier", "submitted"),
    [
        ({"demand": {"submitted": histories.START - 500}}, histories.START - 500),
        ({"demand": {"submitted": histories.START + 500}}, histories.START),
        ({}, histories.START),
        ({"demand": None}, histories.START),
        ({"demand": {"submitted": "yesterday"}}, histories.START),
        ({"demand": {"submitted": float("nan")}}, histories.START),
    ],
)
def test_a_job_was_submitted_with_its_first_attempt(tmp_path: Path, earlier: Any, submitted: float) -> None:
    histories.write(histories.resized().events, tmp_path)
    assert ToldStatus(Layout(tmp_path), earlier).now()["demand"]["submitted"] == submitted
