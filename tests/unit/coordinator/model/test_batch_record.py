"""The events of a job give the batch schedule by which it has trained, each change once, also after restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.control.messages import BatchChanged
from elastic_launcher.coordinator.model.batch_record import BatchRecord
from elastic_launcher.events import Event

REPORT = BatchChanged(((0, 8), (5, 16), (9, 32)), {5: (1.5, 1.25), 9: (2.0, 3.0)}, 40.0, "noise")


def test_each_change_is_due_once_and_what_is_known_of_the_last_one_with_it() -> None:
    record, events = BatchRecord().take(REPORT)
    assert events == [
        {"step": 5, "old": 8, "new": 16, "gain": 1.5, "gains": [1.25]},
        {"step": 9, "old": 16, "new": 32, "gain": 2.0, "gains": [3.0], "noise_scale": 40.0, "reason": "noise"},
    ]
    assert record.take(REPORT) == (record, [])
    again, events = record.take(BatchChanged((*REPORT.entries, (12, 8))))
    assert events == [{"step": 12, "old": 32, "new": 8}] and again.changes == ((5, 16), (9, 32), (12, 8))


def test_new_gains_of_the_same_batch_are_a_change() -> None:
    record, _ = BatchRecord().take(REPORT)
    again = BatchChanged((*REPORT.entries, (73, 32)), {73: (2.5, 3.5)}, 50.0, "moved")
    record, events = record.take(again)
    known = {"gain": 2.5, "gains": [3.5], "noise_scale": 50.0, "reason": "moved"}
    assert events == [{"step": 73, "old": 32, "new": 32, **known}]
    assert record.take(again) == (record, [])
    restarted = record.at_restart(60).take(BatchChanged(REPORT.entries, REPORT.gains))[1]
    assert [(event["step"], event["new"], event["gain"]) for event in restarted] == [(60, 32, 2.0)]


def test_each_change_has_the_rule_of_the_learning_rates() -> None:
    record, events = BatchRecord().take(BatchChanged(REPORT.entries, learning_rate_rule="legw:5"))
    assert [event["learning_rate_rule"] for event in events] == ["legw:5", "legw:5"]
    restarted = record.at_restart(7).take(BatchChanged(((0, 8), (5, 16)), learning_rate_rule="sqrt"))[1]
    assert [event["learning_rate_rule"] for event in restarted] == ["sqrt"]


def test_a_batch_that_never_changed_is_no_event() -> None:
    assert BatchRecord().take(BatchChanged(((0, 8),), reason="x")) == (BatchRecord(), [])


def test_a_restart_voids_the_changes_after_its_step() -> None:
    record, _ = BatchRecord().take(REPORT)
    record, events = record.at_restart(7).take(BatchChanged(((0, 8), (5, 16))))
    assert events == [{"step": 7, "old": 32, "new": 16, "reason": "the job restarted from step 7"}]
    assert record.changes == ((5, 16), (7, 16)) and record.restarted is None
    assert record.take(BatchChanged(((0, 8), (5, 16), (9, 32))))[1] == [{"step": 9, "old": 16, "new": 32}]


def test_a_restart_with_another_batch_is_recorded() -> None:
    record, _ = BatchRecord().take(REPORT)
    record, events = record.at_restart(20).take(BatchChanged(((0, 64),)))
    assert events == [{"step": 20, "old": 32, "new": 64, "reason": "the job restarted from step 20"}]
    assert record.changes == ((5, 16), (9, 32), (20, 64))


def test_a_restart_after_the_last_change_is_no_event() -> None:
    record, _ = BatchRecord().take(REPORT)
    assert record.at_restart(9).take(REPORT) == (record, [])


@pytest.mark.parametrize(
    ("event", "restarted"),
    [
        (Event("job_started", 0, 0, {"resumed_step": 7}), 7),
        (Event("job_started", 0, 0, {}), 0),
        (Event("quota_wait", 0, 0, {"step": 3}), 3),
        (Event("nodes_wait", 0, 0, {"step": 3}), 3),
        (Event("quota_wait", 0, 0, {}), None),
        (Event("generation_formed", 0, 0, {}), None),  # of a script that saves by itself
        (Event("generation_formed", 0, 0, {"first_step": 10}), None),
        (Event("generation_formed", 0, 0, {"first_step": 7}), 7),
    ],
)
def test_events_say_from_where_a_job_restarted(event: Event, restarted: int | None) -> None:
    record, events = BatchRecord().take(REPORT)
    lines = [Event("batch_changed", 0, 1, fields) for fields in events]
    assert BatchRecord.of([*lines, event]) == BatchRecord(record.changes, restarted)


def test_a_launcher_that_takes_over_a_job_that_restarted_from_a_checkpoint_tells_the_batch_that_holds() -> None:
    """The launcher before it died after the first generation of the restart had formed, and before its first step."""
    _, events = BatchRecord().take(REPORT)
    written = [Event("batch_changed", 0, 1, fields) for fields in events]
    written.append(Event("generation_formed", 1, 2, {"first_step": 7, "cause": "failure"}))
    kept = BatchChanged(REPORT.entries[:2])
    record, events = BatchRecord.of(written).take(kept)
    assert events == [{"step": 7, "old": 32, "new": 16, "reason": "the job restarted from step 7"}]
    joined = [*written, Event("generation_formed", 1, 3, {"first_step": 8, "cause": "hint"})]
    assert BatchRecord.of(joined).take(kept) == (record, events)


def test_a_generation_at_the_step_from_which_a_batch_holds_is_no_restart() -> None:
    """Rank 0 was lost in that step, after it had told of it; the step is done again with the same batch."""
    record, events = BatchRecord().take(REPORT)
    written = [Event("batch_changed", 0, 1, fields) for fields in events]
    redone = BatchRecord.of([*written, Event("generation_formed", 1, 2, {"first_step": 9, "cause": "failure"})])
    assert redone.take(REPORT) == (record, [])


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), max_size=5))))
def test_the_events_of_any_history_give_the_schedule_that_holds(
    history: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    """Runs that resume from some step of the one before, and change the batch some steps later."""
    record, schedule, written = BatchRecord(), BatchSchedule.fixed(4), list[dict[str, Any]]()
    for resumed, changes in history:
        schedule = schedule.until(resumed)
        record, step = record.at_restart(resumed), resumed
        for later, size in [(0, 0), *changes]:
            if later:
                step += later
                schedule = schedule.with_entry(step, size)
            record, events = record.take(BatchChanged(schedule.entries))
            written += map(dict, events)
    read: tuple[tuple[int, int], ...] = ((0, 4),)
    for event in written:
        assert event["old"] == read[-1][1]
        read = (*(entry for entry in read if entry[0] < event["step"]), (event["step"], event["new"]))
    assert [BatchSchedule(read).batch_size(step) for step in range(200)] == [schedule.batch_size(s) for s in range(200)]
    assert BatchRecord.of(Event("batch_changed", 0, 1, fields) for fields in written).changes == record.changes
