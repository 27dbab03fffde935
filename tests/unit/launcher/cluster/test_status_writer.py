"""What a job's Service keeps of it for a launcher that finds no work directory."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.launcher.cluster.status_writer import numbers_after
from elastic_launcher.report.state import JobState, NodeState


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
