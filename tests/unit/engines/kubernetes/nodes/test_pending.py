"""The one line about nodes that do not start."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.engines.kubernetes.nodes.pending import pending_line
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Waiting

ROOM = Waiting(Cause.ROOM, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
QUOTA = Waiting(Cause.QUOTA, "exceeded quota: gpus")


def test_it_says_how_many_why_and_what_to_do() -> None:
    assert pending_line([ROOM, ROOM], 1, True) == (
        "2 of 3 nodes pending: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu. "
        "Training goes on with 1; free GPUs, add machines, lower `allowed` of the hints, or check "
        "--gpu-resource and the pod template."
    )


def test_each_reason_is_said_once() -> None:
    assert pending_line([ROOM, QUOTA, ROOM], 0, False) == (
        "3 of 3 nodes pending: 2 × 0/1 nodes are available: 1 Insufficient nvidia.com/gpu; 1 × exceeded quota: gpus. "
        "Nothing trains yet; free GPUs, add machines, lower `allowed` of the hints, or check --gpu-resource and the "
        "pod template; "
        "raise the ResourceQuota, or lower `allowed` of the hints."
    )


def test_nodes_that_run_before_the_first_step_do_not_train() -> None:
    assert "Nothing trains yet with 2; free GPUs" in pending_line([ROOM], 2, False)


def test_nothing_is_said_where_none_waits() -> None:
    assert pending_line([], 4, True) == ""


@given(st.lists(st.builds(Waiting, st.sampled_from(Cause), st.sampled_from(["a", "b"])), min_size=1, max_size=4))
def test_the_line_does_not_depend_on_the_order(waiting: list[Waiting]) -> None:
    assert len({pending_line(order, 1, True) for order in permutations(waiting)}) == 1
