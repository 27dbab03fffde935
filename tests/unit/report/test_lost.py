"""Every instant of a job counted, was lost to one cause, or was idle: together they are the whole time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import KINDS, Event
from elastic_launcher.report.lost import CAUSES, Balance, balance
from tests.support import histories


def lost(found: Balance) -> dict[str, float]:
    """Returns what was lost, without the causes that cost nothing."""
    return {cause: pytest.approx(seconds) for cause, seconds in found.lost.items() if seconds > 1e-9}


def begun(**job: Any) -> histories.Story:
    """A job that took 4 s to begin, and trained for 10 s."""
    return histories.Story(**job).later(4).form(1, 2, cause="start", pause=0).train(10)


def save(story: histories.Story, seconds: float = 0.5, held: float = 0.1) -> histories.Story:
    story.later(seconds)
    return story.add("checkpoint_saved", step=story.step, path="job", bytes=1000, held_seconds=held, seconds=seconds)


def test_what_comes_before_the_first_step_and_after_the_last_does_not_count() -> None:
    found = balance(begun().finish().events)
    assert (found.counted, found.idle, lost(found)) == (pytest.approx(10), pytest.approx(1.2), {"start": 4})


def test_a_script_that_tells_of_no_steps_counts_until_its_end() -> None:
    story = histories.Story().later(4).form(1, cause="start", pause=0).later(20).finish()
    found = balance(story.events)
    assert (found.counted, found.idle, lost(found)) == (pytest.approx(21.2), 0, {"start": 4})


def test_each_pause_is_lost_to_what_it_was_for() -> None:
    story = begun().form(1, 2, 3, pause=0.5).train(5).form(1, 2, pause=0.25).train(5)
    story.form(2, cause="notice", pause=0.125).train(5).form(1, cause="failure", pause=2).train(5)
    found = balance(story.events)
    assert lost(found) == {"start": 4, "grow": 0.5, "shrink": 0.25, "notice": 0.125, "failure": 2}
    assert found.counted == pytest.approx(30)


def test_of_a_checkpoint_only_what_held_the_training_is_lost() -> None:
    found = balance(save(begun()).train(5).events)
    assert lost(found) == {"start": 4, "checkpoint": 0.1}
    assert found.counted == pytest.approx(15.4)


def test_a_pause_in_which_something_is_saved_is_lost_once() -> None:
    story = begun().form(1, 2, cause="failure", pause=1)
    story.add("checkpoint_saved", step=story.step, seconds=1.5, held_seconds=1.5)
    assert lost(balance(story.events)) == {"start": 4, "failure": 1, "checkpoint": 0.5}


def test_waiting_for_quota_counts_from_the_step_that_is_saved() -> None:
    story = begun().add("quota_lost", step=40, message="0 GPUs").train(1)
    save(story, 0.5, held=0.5).later(3).add("quota_wait", step=story.step, message="waits").later(60)
    story.add("quota_back", step=story.step, seconds=60.0).later(6).form(1, cause="start", pause=0).train(5).finish()
    found = balance(story.events)
    assert lost(found) == {"start": 4 + 6, "quota": 0.5 + 3 + 60}
    assert (found.counted, found.idle) == (pytest.approx(16), pytest.approx(1.2))


def test_waiting_for_quota_at_the_start_is_not_the_start() -> None:
    story = histories.Story().later(1).add("quota_wait", message="waits").later(30).add("quota_back", seconds=30.0)
    found = balance(story.later(4).form(1, cause="start", pause=0).train(5).events)
    assert lost(found) == {"start": 1 + 4, "quota": 30}


def test_a_job_that_waits_for_quota_in_vain_loses_that_time() -> None:
    story = begun().add("quota_lost", step=40, message="0 GPUs")
    save(story, 0.5).add("quota_wait", step=story.step, message="waits").later(30).finish(75)
    found = balance(story.events)
    assert lost(found)["quota"] == 0.5 + 30 + 1.2
    assert found.idle == pytest.approx(0)


def again(story: histories.Story, step: int) -> histories.Story:
    """Has a job started once more, from a step that is saved; it takes 3 s to begin."""
    story.step = step
    return story.add("job_started", resumed_step=step, term=2).later(3).form(1, cause="start", pause=0)


def test_what_is_between_two_runs_is_idle_where_the_first_was_stopped() -> None:
    story = save(begun(), 0.5, held=0.5)
    step = story.step
    found = balance(again(story.finish(75).later(100), step).train(5).events)
    assert (found.counted, found.idle) == (pytest.approx(15), pytest.approx(0.5 + 1.2 + 100))
    assert lost(found) == {"start": 4 + 3}


def test_a_launcher_that_vanished_costs_what_was_done_since_the_last_checkpoint_too() -> None:
    story = save(begun(), 0.5, held=0.0)
    step = story.step
    found = balance(again(story.train(7).later(20), step).train(5).events)
    assert lost(found) == {"start": 4 + 3, "coordinator": 0.5 + 7 + 20}
    assert found.counted == pytest.approx(10 + 5)


def test_a_run_that_failed_costs_what_was_done_since_the_last_checkpoint_too() -> None:
    story = save(begun(), 0.5, held=0.0)
    step = story.step
    found = balance(again(story.train(7).finish(1).later(20), step).train(5).events)
    assert lost(found) == {"start": 4 + 3, "failure": pytest.approx(0.5 + 7 + 1.2)}
    assert (found.counted, found.idle) == (pytest.approx(15), pytest.approx(20))


def test_a_run_that_had_saved_nothing_was_in_vain() -> None:
    found = balance(again(begun().finish(1), 0).train(5).events)
    assert lost(found) == {"start": 4 + 3, "failure": pytest.approx(10 + 1.2)}


def test_a_job_that_restarts_costs_what_was_done_since_the_last_checkpoint_too() -> None:
    story = save(begun(), seconds=0.0, held=0.0)
    saved = story.step
    story.train(5).step = saved
    story.form(3, 4, cause="failure", pause=3.0).train(5)
    found = balance(story.events)
    assert lost(found) == {"start": 4, "failure": 8}
    assert found.counted == pytest.approx(15)


def test_a_launcher_that_came_back_in_time_costs_nothing() -> None:
    story = begun().later(5).add("coordinator_adopted", members=2).train(5)
    assert lost(balance(story.events)) == {"start": 4}


def test_without_events_there_is_nothing() -> None:
    found = balance([])
    assert (found.total, found.goodput) == (0.0, 0.0)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "pause_seconds": st.floats(0, 50),
        "seconds": st.floats(0, 50),
        "held_seconds": st.floats(0, 60),
        "step": st.integers(0, 20),
        "resumed_step": st.integers(0, 20),
        "cause": st.sampled_from(["start", "hint", "notice", "failure"]),
        "left": st.lists(st.integers(1, 3), max_size=2),
        "exit_code": st.sampled_from([0, 1, 75, 130]),
    },
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(-5, 50), FIELDS), max_size=30))
def test_all_of_it_is_the_whole_time_whatever_happened(told: list[tuple[str, float, dict[str, Any]]]) -> None:
    now, events = 1000.0, []
    for kind, later, fields in told:
        now += later  # a wall clock may be set back
        events.append(Event(kind, now, 1, fields))
    found = balance(events)
    start = next((event.time for event in events if event.kind == "job_started"), events[0].time if events else 0.0)
    whole = max([event.time - start for event in events] + [0.0])
    assert found.total == pytest.approx(whole, abs=1e-6)
    assert min([found.counted, found.idle, *found.lost.values()]) >= 0
    assert tuple(found.lost) == CAUSES
    assert 0 <= found.goodput <= 1
