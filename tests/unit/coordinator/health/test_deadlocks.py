"""Ranks that wait for each other in different operations end the job; who keeps others waiting for long is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Ended
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.deadlocks import Wait, are_apart, find_awaited, follow
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.observations import MemberAwaited, MembersApart, Observation
from tests.support.played_job import Job, lose, training

STEP, SUMS = "in job.backward (call 1 of step 21)", "in job.evaluate at step 20"
STOP = "in job.stop at step 20"
BODY = "in the loop body of step 21"
OLD, NEW = Wait(7, STEP, 0.0, 3), Wait(7, STEP, 9.0, 3)
OUTSIDE = Wait(3, "in a collective operation of the script's own", 0.0, 9, outside=True)


@pytest.mark.parametrize(
    ("waits", "apart"),
    [
        ([OLD, replace(OLD, doing=SUMS)], True),
        ([OLD, OLD, replace(OLD, doing=SUMS, turn=12)], True),
        ([OLD, OLD], False),
        ([OLD, replace(OLD, turn=9)], False),  # the same operation
        ([OLD, replace(OLD, doing=SUMS), None], False),  # one works: it may end what they wait in
        ([OLD, replace(OLD, doing=SUMS, reports=1)], False),
        ([OLD, replace(NEW, doing=SUMS)], False),
        ([replace(OLD, meets="job.backward"), replace(OLD, doing=STOP, meets="job.backward")], False),
        ([replace(OLD, doing=SUMS), replace(OLD, doing=STOP, meets="job.backward")], True),
        ([OLD, OUTSIDE], False),  # others than ranks may take part in it
        ([OLD], False),
        ([], False),
    ],
)
def test_ranks_are_apart_when_all_wait_for_long_in_different_operations(waits: list[Wait | None], apart: bool) -> None:
    assert are_apart(waits, 10.0, 5.0, 60.0) is apart


def test_an_operation_of_the_scripts_own_counts_when_it_has_taken_far_too_long() -> None:
    assert are_apart([OLD, OUTSIDE], 61.0, 5.0, 60.0)
    assert are_apart([replace(OLD, doing=STOP, meets="job.backward"), OUTSIDE], 61.0, 5.0, 60.0)


def test_a_wait_is_the_same_as_long_as_its_number_and_its_operation_are() -> None:
    first = follow(None, Vitals(waits=1.0, turn=4, doing=STEP), 10.0)
    assert first == Wait(4, STEP, 10.0, 1)
    stops = follow(None, Vitals(turn=4, doing=STOP, meets="job.backward"), 10.0)
    assert stops == Wait(4, STOP, 10.0, 1, meets="job.backward")
    assert follow(first, Vitals(waits=3.0, turn=4, doing=STEP), 12.0) == Wait(4, STEP, 10.0, 2)
    assert follow(first, Vitals(waits=1.0, turn=5, doing=STEP), 12.0) == Wait(5, STEP, 12.0, 1)
    assert follow(first, Vitals(doing=BODY), 12.0) is None


WAITS, WORKS = Vitals(waits=40.0, turn=3, doing=STEP, busy=40.0), Vitals(doing=BODY, busy=41.0)


@pytest.mark.parametrize(
    ("vitals", "found"),
    [
        ({1: WORKS, 2: WAITS}, (2, 1)),
        ({1: WORKS, 2: structs.replace(WAITS, waits=29.0)}, None),
        ({1: WAITS, 2: WAITS}, None),
        ({1: structs.replace(WORKS, busy=5.0), 2: WORKS, 3: WAITS}, (3, 2)),
        (
            {1: structs.replace(WORKS, doing=SUMS), 2: structs.replace(WAITS, doing=SUMS)},
            None,
        ),  # its share is larger, or it is slower
        ({1: WAITS}, None),
        ({}, None),
    ],
)
def test_who_keeps_the_others_waiting(vitals: dict[int, Vitals], found: tuple[int, int] | None) -> None:
    awaited = find_awaited(vitals, 30.0)
    assert (None if awaited is None else (awaited.waiter, awaited.member)) == found


Tell = Callable[[float], Vitals]


def waiting(doing: str, since: float = 0.0) -> Tell:
    return lambda now: Vitals(waits=now - since, usual=0.5, turn=1 + int(since), doing=doing, busy=now - since)


def meeting(doing: str) -> Tell:
    return lambda now: structs.replace(waiting(doing)(now), meets="job.backward")


def working(doing: str = BODY, work: int = 0) -> Tell:
    return lambda now: Vitals(work=work, usual=0.5, doing=doing, busy=now)


def look(job: Job, told: dict[int, Tell], seconds: int, feed: bool = True) -> list[Observation]:
    """Has members tell what they do every two seconds; returns what was found, after having fed it to the job."""
    watch, found = Watch(10.0, 60.0, 0.0), []
    for second in range(1, seconds):
        for number, tell in told.items():
            if second % 2 == number % 2:
                watch.hear(number, float(second), tell(float(second)))
        for one in watch.look(job.state, float(second)):
            if isinstance(one, (MembersApart, MemberAwaited)):
                found.append(one)
                if feed:
                    job.feed(one)
    return found


def test_a_job_whose_ranks_wait_for_each_other_ends_within_the_heartbeat_timeout() -> None:
    job = training(3)
    found = look(job, {1: waiting(SUMS), 2: waiting(STEP), 3: waiting(STEP)}, 12)
    assert isinstance(found[0], MembersApart) and found[0].now <= 10.0
    job.tick(20.0)
    assert job.finish is not None and job.finish.exit_code == ExitCode.SCRIPT_FAILED
    assert (
        f"ranks wait for each other in different operations: rank 0 is {SUMS}, rank 1 is {STEP}, rank 2 is {STEP}"
        in job.finish.message
    )


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({1: waiting(STEP), 2: waiting(STEP)}, id="the same operation"),
        pytest.param({1: waiting(STEP), 2: working()}, id="one works"),
        pytest.param({1: waiting(STEP)}, id="nothing is heard of one"),
        pytest.param(
            {1: meeting(STEP), 2: meeting(STOP)},
            id="one ends the training in what the other one reduces",
        ),
        pytest.param({1: waiting(SUMS), 2: lambda now: waiting(STEP, now - now % 3)(now)}, id="one gets further"),
    ],
)
def test_nobody_is_apart_otherwise(told: dict[int, Tell]) -> None:
    assert not [one for one in look(training(2), told, 25) if isinstance(one, MembersApart)]


def test_ranks_that_find_each_other_after_a_loss_are_not_apart() -> None:
    job = training(3)
    lose(job, 3)
    job.break_step((1,), 1, 10)
    look(job, {1: waiting("in the forming of another generation"), 2: waiting(STEP)}, 25)
    job.tick(20.0)
    assert job.finish is None


def test_who_has_ended_its_script_is_apart_from_nobody_and_named_where_it_stays() -> None:
    job = training(2)
    job.report(2, Ended(20, True))
    found = look(job, {1: waiting(SUMS), 2: waiting(STEP)}, 40)
    assert [type(one) for one in found] == [MemberAwaited] and job.finish is None
    (message,) = [event["message"] for event in job.events("warning")]
    assert "rank 1 has been at the end of its script" in message and "use job.evaluate" not in message


def test_a_rank_that_keeps_another_one_waiting_is_named_once_with_what_may_help() -> None:
    job = training(2)
    found = look(job, {1: working(work=7), 2: waiting(STEP)}, 50)
    assert [type(one) for one in found] == [MemberAwaited]
    (message,) = [event["message"] for event in job.events("warning")]
    assert message.startswith(f"rank 1 has waited 30 s {STEP}; rank 0 has been {BODY} for 2")
    assert "use job.evaluate" in message and "given up after 60 s unless --progress-timeout is raised" in message


def test_it_is_named_again_when_it_does_so_in_another_place() -> None:
    def tell(now: float) -> Vitals:
        return Vitals(doing=f"in the loop body of step {now // 50}", busy=now % 50, usual=0.5)

    job = training(2)
    look(job, {1: tell, 2: lambda now: waiting(STEP, now - now % 50)(now)}, 100)
    messages = [event["message"] for event in job.events("warning")]
    assert len(messages) == 2 and not any("given up" in message for message in messages), messages
