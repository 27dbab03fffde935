"""The line that logs of a running job show: what it says, that a program can read it, and when it is due."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import Event
from elastic_launcher.report.describe import position
from elastic_launcher.report.progress_line import EVERY_SECONDS, Told, progress_line, tell
from elastic_launcher.report.state import JobState, advance, fold
from tests.support import histories

SPAN = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(\d+)s")


def read(line: str) -> dict[str, str]:
    """Returns a line's fields, as a program would read them."""
    kind, *fields = line.split(" ")
    assert kind == "progress"
    return dict(field.split("=") for field in fields)


def told_over(events: list[Event]) -> list[JobState]:
    """Returns the states that were told, where somebody looks with each event and each second between them."""
    state, told, shown = JobState(), Told(histories.START), []
    now = histories.START

    def look() -> None:
        nonlocal told
        told, line = tell(told, state, now)
        assert line == (progress_line(state) if line else "")
        shown.extend([state] if line else [])

    for event in events:
        while now + 1.0 < event.time:
            now += 1.0
            look()
        now = event.time
        state = advance(state, event)
        look()
    return shown


def test_it_says_what_the_issue_asks_for() -> None:
    assert progress_line(fold(histories.resized().events[:-1])) == (
        "progress percent=29.0 remaining=2m1s epoch=7/24 step=348/1200 generation=3 world_size=2 "
        "guaranteed=1 allowed=3 limit=3 loss=0.6201 samples_per_second=2048"
    )


def test_a_stock_script_has_no_position() -> None:
    assert progress_line(JobState(generation=2, world_size=3)) == "progress generation=2 world_size=3"


def test_the_values_of_an_adaptive_batch_are_shown() -> None:
    known = {"batch": 1024.0, "lr_factor": 3.337, "noise_scale": 83.5, "efficiency": 0.1043}
    state = JobState(step=5, generation=1, world_size=1, adaptive=known)
    said = "batch=1024 lr_factor=3.337 noise_scale=83.5 efficiency=0.1043"
    assert progress_line(state) == f"progress epoch=1 step=5 generation=1 world_size=1 {said}"


def test_what_is_not_known_is_left_out() -> None:
    state = JobState(step=5, epoch=0, world_size=1, generation=1, loss="nan")
    assert progress_line(state) == "progress epoch=1 step=5 generation=1 world_size=1 loss=nan"


def test_with_an_adaptive_batch_the_statistical_epochs_have_the_total() -> None:
    state = JobState(step=5, epoch=11, epochs=9, statistical_epoch=7.126, world_size=1, generation=1)
    assert progress_line(state) == ("progress epoch=12 statistical_epoch=7.13/9 step=5 generation=1 world_size=1")
    assert position(state) == "statistical epoch 7.13/9, step 5"


def test_ranks_that_hold_the_others_up_are_named() -> None:
    members = ({"member": 4, "node": 4}, {"member": 7, "node": 7}, {"member": 9, "node": 9})
    state = JobState(step=5, generation=1, world_size=3, members=members, stragglers={7: {"node": 7}, 9: {"node": 9}})
    assert read(progress_line(state))["slow_ranks"] == "1,2"


def test_ranks_from_which_nothing_is_heard_are_named() -> None:
    members = ({"member": 4, "node": 4}, {"member": 7, "node": 7})
    state = JobState(step=5, generation=1, world_size=2, members=members, silent={7: {"node": 7}})
    assert read(progress_line(state))["silent_ranks"] == "1"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.7, "1s"), (59.6, "1m0s"), (121.0, "2m1s"), (7520.0, "2h5m20s"), (273_600.0, "76h0m0s")],
)
def test_the_rest_is_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    state = JobState(step=0, total_steps=1, step_seconds=seconds, generation=1, world_size=1)
    assert read(progress_line(state))["remaining"] == text


def test_numbers_have_no_more_digits_than_help() -> None:
    state = JobState(generation=1, world_size=1, loss=0.000123456, samples_per_second=51_234.5)
    found = read(progress_line(state))
    assert (found["loss"], found["samples_per_second"]) == ("0.0001235", "51234")


@given(
    step=st.integers(0, 10**9),
    total=st.integers(1, 10**9),
    loss=st.floats(-1e300, 1e300),
    speed=st.floats(1e-3, 1e9),
    step_seconds=st.floats(1e-6, 1e5),
)
def test_a_program_reads_the_numbers_back(
    step: int, total: int, loss: float, speed: float, step_seconds: float
) -> None:
    state = JobState(
        step=step,
        total_steps=total,
        loss=loss,
        samples_per_second=speed,
        step_seconds=step_seconds,
        generation=1,
        world_size=8,
    )
    found = read(progress_line(state))
    assert found["step"] == f"{step}/{total}"
    assert float(found["loss"]) == pytest.approx(loss, rel=1e-3)
    assert float(found["samples_per_second"]) == pytest.approx(speed, rel=1e-3)
    assert 0.0 <= float(found["percent"]) <= 100.0
    assert (float(found["percent"]) == 100.0) == (step >= total), "only what is over is wholly done"
    hours, minutes, seconds = (int(part or 0) for part in SPAN.fullmatch(found["remaining"]).groups())  # type: ignore[union-attr]
    assert abs(hours * 3600 + minutes * 60 + seconds - max(0, total - step) * step_seconds) <= 0.5 + 1e-6


def test_each_change_is_told_once_and_then_every_thirty_seconds() -> None:
    shown = told_over(histories.resized().events)
    assert [(state.world_size, state.quota["allowed"]) for state in shown] == [(1, 1), (1, 3), (3, 3), (2, 3)]
    assert all(state.timed_generation == state.generation for state in shown), "with numbers of the new size"


def test_a_hint_that_says_the_same_again_is_no_change() -> None:
    story = histories.Story().hint(1, 1, 3).start_nodes(1).warm(1).form(1, cause="start").train(3)
    assert len(told_over(story.hint(1, 1, 3).train(3).hint(1, 1, 3).train(3).events)) == 1


def test_while_nothing_changes_it_is_due_every_thirty_seconds() -> None:
    story = histories.Story().start_nodes(1).warm(1).form(1, cause="start").train(121)
    shown = told_over(story.events)
    assert len(shown) == 1 + 120 // EVERY_SECONDS


def test_a_step_or_an_evaluation_that_takes_long_does_not_silence_it() -> None:
    story = histories.Story().start_nodes(1).warm(1).form(1, cause="start").train(2)
    assert len(told_over(story.later(95).add("log", step=3, values={}).events)) == 1 + 3


def test_a_script_that_tells_of_no_steps_is_told_of_too() -> None:
    story = histories.Story().hint(1, 2, 3).start_nodes(1).warm(1).form(1, cause="start")
    shown = told_over(story.later(65).add("checkpoint_saved", step=0, path="x").events)
    assert [progress_line(state) for state in shown] == [
        "progress generation=1 world_size=1 guaranteed=1 allowed=2 limit=3"
    ] * 2


def test_nodes_that_take_long_to_start_do_not_make_the_first_line_one_without_numbers() -> None:
    story = histories.Story().start_nodes(1).later(45).warm(1).form(1, cause="start").later(0.5).train(2)
    (first,) = told_over(story.events)
    assert first.loss is not None


def test_a_change_that_was_told_before_its_first_step_is_told_with_its_numbers_too() -> None:
    story = (
        histories.Story()
        .start_nodes(1)
        .warm(1)
        .form(1, cause="start")
        .train(1)
        .later(28.5)
        .form(1, 2)
        .later(3)
        .train(9)
    )
    assert [(state.world_size, state.timed_generation) for state in told_over(story.events)] == [(1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize("story", [histories.waiting, histories.Story])
def test_a_job_that_does_not_train_has_none(story: Callable[[], histories.Story]) -> None:
    assert not told_over(story().later(100).add("warning", message="").events)


def test_a_job_that_waits_for_quota_or_is_over_has_none() -> None:
    events = histories.interrupted().events
    for index, event in enumerate(events):
        _, line = tell(Told(0.0), fold(events[: index + 1]), 1e6)
        if event.kind in ("quota_wait", "quota_back", "job_started", "job_finished"):
            assert not line, event.kind
        if event.kind == "progress":
            assert line


def test_a_job_that_waits_for_nodes_says_so_from_time_to_time() -> None:
    events = [*histories.resized().events[:-1]]
    events.append(Event("nodes_wait", events[-1].time + 1.0, 3, {"step": 348, "message": "waiting for nodes"}))
    told, line = tell(Told(0.0), fold(events), EVERY_SECONDS)
    assert line == (
        "progress percent=29.0 epoch=7/24 step=348/1200 waiting_for=nodes guaranteed=1 allowed=3 limit=3 loss=0.6201"
    )
    assert tell(told, fold(events), EVERY_SECONDS + 1.0)[1] == ""
