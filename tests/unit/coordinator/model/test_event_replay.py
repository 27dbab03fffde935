"""What a run's events tell who goes on with it."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.coordinator.model.event_replay import (
    Generation,
    LastHint,
    Record,
    earlier_wait,
    last_hint,
    past_after,
    read_record,
    run_of,
)
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.events import Event
from elastic_launcher.workdir import Past


def event(kind: str, time: float = 0.0, generation: int = 0, **fields: Any) -> Event:
    return Event(kind, time, generation, fields)


START = event("job_started", 100.0)
FORMED = [
    event("generation_formed", 110.0, 1, formation=1, members=[{"member": 5, "node": 4}], pause_seconds=0.0),
    event(
        "generation_formed",
        120.0,
        2,
        formation=3,
        members=[{"member": 5, "node": 4}, {"member": 6, "node": 5}],
        pause_seconds=0.5,
    ),
]
GROWN = event("generation_formed", 140.0, 3, formation=4, nodes=3, members=[])
RUN = [
    START,
    event("node_started", 101.0, node=4, members=[5]),
    event("node_started", 102.0, node=5, members=[6]),
    FORMED[0],
    event("progress", 115.0, 1, step=7, samples=168),
    FORMED[1],
    event("notice", 130.0, 2, node=5, source="signal"),
    event("node_left", 131.0, 2, node=5, cause="notice"),
]


def test_a_run_is_what_came_after_the_last_start() -> None:
    assert run_of([]) == ()
    assert run_of([*RUN, event("job_finished", exit_code=75), *RUN]) == RUN
    assert run_of([*RUN, event("job_finished", exit_code=75)]) == ()


def test_its_record() -> None:
    assert read_record(RUN) == Record(
        Generation(2, 3, (5, 6)),
        4,
        frozenset({("notice", 5), ("node_left", 5)}),
        7,
        168,
        noticed_at=131.0,
        members={4: (5,), 5: (6,)},
        nodes={5: 4, 6: 5},
    )


def test_what_was_said_of_a_node_before_its_queue_took_it_back_counts_no_more() -> None:
    placed = [event("node_placed", node=node, pod=f"digits-{node}-a") for node in (4, 5)]
    run = [*RUN[:3], *placed, event("node_warm", node=4), event("node_warm", node=5)]
    run.append(event("node_requeued", node=5, members=[7], pod="digits-5-a"))
    record = read_record(run)
    assert (record.members, record.nodes) == ({4: (5,), 5: (7,)}, {5: 4, 6: 5, 7: 5})
    assert (record.told, record.pods) == ({("node_warm", 4)}, {4: "digits-4-a"})
    assert [number for number in (5, 6, 7, 8) if record.superseded(number)] == [6]
    assert past_after(Past(), run) == Past(first_node=6, first_member=8)


def test_nodes_above_the_guarantee_are_recorded_and_stay_so_when_their_queue_takes_them_back() -> None:
    above = event("node_started", node=6, members=[7], over_quota=True)
    again = event("node_requeued", node=6, members=[8], pod="digits-6-a")
    assert read_record([*RUN, above, again]).over_quota == {6}


def test_a_next_pod_that_was_told_before_its_queue_took_the_last_one_back_stays() -> None:
    run = [*RUN[:3], *(event("node_placed", node=5, pod=pod) for pod in ("digits-5-a", "digits-5-b"))]
    run.append(event("node_requeued", node=5, members=[7], pod="digits-5-a"))
    assert read_record(run).pods == {5: "digits-5-b"}


@pytest.mark.parametrize(("start", "step"), [({}, 0), ({"resumed_step": 40}, 40)])
def test_the_record_of_a_run_that_has_not_begun(start: dict[str, Any], step: int) -> None:
    assert read_record([event("job_started", **start)]) == Record(step=step)


def test_a_run_that_waited_for_its_quota_has_begun_again() -> None:
    """Its members of before are gone, and say nothing about those that it has now."""
    waited = [
        event("quota_lost", 135.0, 2, step=9),
        event("quota_wait", 136.0, step=8),
        event("quota_back", 236.0, step=8),
    ]
    record = read_record([*RUN, *waited])
    assert (record.generation, record.step) == (None, 8)
    formed = event("generation_formed", 240.0, 3, formation=4, members=[{"member": 7, "node": 6}], pause_seconds=0.0)
    assert read_record([*RUN, *waited, formed]).generation == Generation(3, 4, (7,))
    assert read_record([event("job_started"), event("quota_wait"), event("quota_back")]) == Record()


def test_the_last_hint_of_a_job_that_has_begun() -> None:
    hints = [event("hint_applied", allowed=gpus, target_nodes=gpus) for gpus in (3, 2)]
    assert last_hint([], 1, resumes=False) is None
    assert last_hint([START, *hints], 1, resumes=False) is None, "it never trained"
    assert last_hint([START, *hints, FORMED[0]], 1, resumes=False) == LastHint(2, 2)
    assert last_hint([], 1, resumes=True) == LastHint()
    assert last_hint([START, hints[0], GROWN, hints[1]], 1, resumes=False) == LastHint(2, 2)


def test_the_largest_batch_that_a_job_reported_last_goes_with_its_hint() -> None:
    told = [event("step_times", bounds={"base_batch_size": 8, "max_batch_size": most}) for most in (8, 64)]
    hint = event("hint_applied", allowed=2, target_nodes=2)
    assert last_hint([START, FORMED[0], *told], 1, resumes=False) == LastHint(None, 0, 64)
    assert last_hint([START, hint, FORMED[0], *told], 1, resumes=False) == LastHint(2, 2, 64)


@pytest.mark.parametrize(
    ("target", "allowed", "nproc_per_node", "nodes"),
    [
        pytest.param(1, 3, 1, 3, id="the hint allowed growth, which came later"),
        pytest.param(2, 5, 2, 2, id="the hint allows whole nodes only"),
        pytest.param(2, 2, 1, 2, id="the formation was under way when the hint lowered the number"),
        pytest.param(0, 0, 1, 0, id="the same, and the hint forbids them all"),
    ],
)
def test_a_generation_that_forms_after_the_last_hint_counts_as_far_as_that_allows(
    target: int, allowed: int, nproc_per_node: int, nodes: int
) -> None:
    hint = event("hint_applied", allowed=allowed, target_nodes=target)
    lost = event("quota_lost", 150.0, 3, step=9)
    assert last_hint([START, hint, GROWN, lost], nproc_per_node, resumes=False) == LastHint(nodes, allowed)


def test_a_job_that_waits_for_nodes_begins_again_there() -> None:
    told = event("nodes_wait", 140.0, step=9, message="")
    assert read_record([*RUN, told]).generation is None
    assert read_record([*RUN, told]).step == 9


WHY = "node 4 must leave (notice)"
TAKEN = event("nodes_taken", 130.0, 2, step=9, message=WHY)
WAITS = event("nodes_wait", 140.0, step=9, message="waiting: node 4", reason=WHY, cause="notice")
ENDS = [
    pytest.param(event("generation_formed", 150.0, 3, formation=4, members=[]), id="others train"),
    pytest.param(event("quota_lost", 150.0, step=9, message=""), id="quota is lacking"),
    pytest.param(event("quota_wait", 150.0, message=""), id="it waits for quota"),
]


def test_a_wait_for_nodes_that_goes_on() -> None:
    assert earlier_wait(RUN, 170.0) is None
    started = event("node_started", 165.0, node=6, members=[7])
    assert earlier_wait([*RUN, TAKEN, started], 170.0) == EarlierWait(WHY, 35.0, "notice", away=5.0)
    assert earlier_wait([*RUN, TAKEN, WAITS, started], 170.0) == EarlierWait(WHY, 25.0, "notice", away=5.0)


def test_the_time_without_a_launcher_is_no_wait() -> None:
    assert earlier_wait([*RUN, TAKEN, WAITS], 9000.0) == EarlierWait(WHY, 0.0, "notice", away=8860.0)


def test_a_clock_that_was_set_back_makes_no_wait_shorter_than_none() -> None:
    back = event("node_started", 100.0, node=6, members=[7])
    assert earlier_wait([*RUN, TAKEN, WAITS, back], 90.0) == EarlierWait(WHY, 0.0, "notice")


def test_the_time_that_launchers_before_have_waited_counts() -> None:
    again = event("nodes_wait", 160.0, message="", reason=WHY, cause="notice", waited=20.0)
    started = event("node_started", 165.0, node=6, members=[7])
    assert earlier_wait([START, again, started], 170.0) == EarlierWait(WHY, 25.0, "notice", away=5.0)


@pytest.mark.parametrize("end", ENDS)
def test_a_wait_for_nodes_that_is_over(end: Event) -> None:
    assert earlier_wait([*RUN, TAKEN, WAITS, end], 170.0) is None
    assert earlier_wait([*RUN, end, TAKEN], 170.0) is not None
