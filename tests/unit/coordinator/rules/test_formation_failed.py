"""How a resize fails, and what that costs: a joiner dies, a group does not form, a first step breaks off."""

from __future__ import annotations

import signal

import pytest

from elastic_launcher.control.messages import (
    Abandon,
    Active,
    Failed,
    Form,
    Formed,
    FormFailed,
    StepFailed,
    StepRedone,
    Warm,
)
from elastic_launcher.coordinator.model.roster import Phase
from tests.support.played_job import growing, training


def test_a_joiner_that_is_told_to_go_and_is_not_admitted_is_ended() -> None:
    job = growing(1, 1)
    job.notice(2)
    job.report(1, FormFailed(2, "time-out"))
    job.tick(5)
    assert job.killed == [2]
    assert len(job.orders(Form)) == 2


def test_a_joiner_that_differs_from_what_was_trained_first_is_compared_by_the_ranks_alone() -> None:
    """What trains now may be another data set, or another phase; the joiner finds out in the group, and fails alone."""
    job = training(1)
    job.target(2)
    job.warm(2, fingerprint={"dataset": 99})
    assert job.form.mode == "grow"
    job.report(2, Failed("RuntimeError: this rank can't join, since it does not train the same"))
    assert job.finish is None
    assert job.killed == [2]


def test_a_joiner_that_waits_in_another_loop_goes_there_and_then_joins() -> None:
    job = growing(1, 1)
    job.report(2, FormFailed(2, "the training has gone on to another epoch", moved=True, wait=1))
    job.tick(30)
    assert len(job.orders(Form)) == 2, "none is formed until it is there"
    assert not job.killed and not job.events("warning")
    job.report(2, Warm({"dataset": 99}, wait=2))
    assert (job.form.formation, job.form.mode) == (3, "grow")


def test_a_joiner_that_waits_there_already_when_its_move_is_told_is_taken_at_once() -> None:
    job = growing(1, 1)
    job.report(1, FormFailed(2, "the training has gone on to another data set", moved=True))
    assert job.form.formation == 3, "it waits where it was told to; if not, it says so in the next attempt"
    job.report(2, Warm({"dataset": 99}, wait=2))
    job.report(2, FormFailed(2, "the training has gone on to another epoch", moved=True, wait=1))
    assert job.form.formation == 3 and job.state.formation is not None
    job.complete(20)
    assert job.state.group == (1, 2)


def test_joiners_that_are_late_again_and_again_are_not_to_blame() -> None:
    job = growing(1, 1)
    for number in range(2, 12):
        assert job.form.formation == number
        job.report(2, FormFailed(number, "the training has gone on", moved=True, wait=number))
        job.report(2, Warm({"dataset": 99}, wait=number + 1))
    assert job.finish is None and not job.killed


def test_a_joiner_that_waits_again_keeps_its_fingerprint() -> None:
    job = growing(1, 1)
    job.report(2, FormFailed(2, "lost"))
    job.report(2, Warm({}))
    job.tick(2)
    assert job.form.formation == 3
    assert job.finish is None


@pytest.mark.parametrize("when", ["starting", "forming", "formed"])
def test_a_joiner_that_dies_costs_the_survivors_nothing_before_they_swap(when: str) -> None:
    job = training(2)
    job.target(3)
    if when != "starting":
        job.warm(3)
    if when == "formed":
        job.report_all((1, 2, 3), Formed(2))
    job.rank_ended(3, signal=signal.SIGKILL)
    assert job.finish is None
    assert job.killed == [3]
    assert job.state.group == (1, 2)
    assert job.told(Abandon) == ([] if when == "starting" else [1, 2])
    job.node_exited(3, 1)
    job.tick(2)
    assert len(job.started) == 4, "another one is tried"


def test_a_joiner_that_dies_in_its_first_step_costs_one_more_formation() -> None:
    job = growing(2, 1)
    job.report_all((1, 2, 3), Formed(2))
    job.report(1, StepFailed(2, 20, "Connection reset"))
    assert job.told(Abandon) == [1, 2, 3, 1, 2], "at once, so that all see it"
    job.rank_ended(3, signal=signal.SIGKILL)
    assert job.killed == [3]
    assert len(job.orders(Form)) == 2
    job.report(2, StepFailed(2, 21, "Connection reset"))
    assert (job.form.mode, job.form.cause, job.form.generation) == ("recover", "failure", 2)
    assert job.form.members == (1, 2)
    job.report_all((1, 2), StepRedone(21))
    job.complete(step=21, pause=0.5)
    assert job.events("step_redone") == [{"step": 21}]
    assert job.events("generation_formed")[-1]["cause"] == "failure"
    assert job.finish is None


def test_a_survivor_that_was_active_already_recovers_too() -> None:
    job = growing(2, 1)
    job.report_all((1, 2), Active(2, 21, 21))
    job.rank_ended(3, signal=signal.SIGKILL)
    job.break_step((1, 2), 2, step=21)
    assert job.form.mode == "recover"


def test_a_survivor_that_learns_of_the_end_of_a_formation_at_the_boundary_recovers() -> None:
    job = growing(2, 1)
    job.rank_ended(3, signal=signal.SIGKILL)
    job.break_step((1,), 1, step=20)  # it had agreed, and found the formation gone: still on the old group
    job.break_step((2,), 2, step=20)
    assert job.form.mode == "recover"


def test_a_pending_formation_gives_way_to_a_recovery() -> None:
    job = growing(2, 1)
    job.report(1, FormFailed(2, "time-out"))
    job.tick(2)
    assert job.form.formation == 3
    job.break_step((1, 2), 2, step=20)
    assert Abandon(3) in job.orders(Abandon)
    assert job.form.mode == "recover"


def test_a_shrink_is_tried_three_times() -> None:
    job = training(2)
    job.target(1)
    for number in (2, 3, 4):
        job.report(1, FormFailed(number, "time-out"))
        job.tick(2)
    assert job.finish is not None
    assert "could be formed in 3 attempts" in job.finish.message


def test_a_joiner_that_does_not_form_in_time_is_ended() -> None:
    job = growing(2, 1)
    job.report_all((1, 2), Formed(2))
    job.tick(16)
    assert job.killed == [3]
    assert "did not form the group in time" in job.events("node_failed")[0]["message"]


def test_formations_that_fail_without_a_culprit_are_at_last_the_joiners_fault() -> None:
    job = growing(1, 1)
    for number in (2, 3, 4):
        assert job.killed == []
        job.report(1, FormFailed(number, "time-out"))
        job.tick(2)
    assert job.killed == [2]
    assert job.finish is None


def test_the_wait_for_the_first_step_has_no_bound_before_anybody_took_it() -> None:
    job = growing(2, 1)  # the survivors may be in an evaluation
    job.report_all((1, 2, 3), Formed(2))
    job.tick(3600)
    assert job.state.formation is not None
    job.report_all((1, 2), Active(2, 21, 21))
    job.tick(61)
    assert job.killed == [3]


def test_three_joiners_in_a_row_that_fail_are_enough() -> None:
    job = training(1)
    job.target(2)
    for node in (2, 3, 4):
        job.join(node)
        job.report(node, Failed("OSError: no such data"))
        job.node_exited(node, 1)
        job.tick(10)
    assert len(job.started) == 4
    assert len(job.events("node_failed")) == 3
    assert "no more are started" in job.events("warning")[-1]["message"]
    assert job.finish is None
    job.target(1)
    job.target(2)
    assert len(job.started) == 5, "a raised target is another try"


def test_a_joiner_whose_script_ends_has_failed() -> None:
    job = training(1)
    job.target(2)
    job.rank_ended(2, 0)
    assert "ended before it trained" in job.events("node_failed")[0]["message"]


def test_one_that_was_never_admitted_and_reports_late_is_not_heard() -> None:
    job = training(1)
    job.target(2)
    job.target(1)
    job.warm(2)
    assert job.state.nodes[2].phase is Phase.ENDING
    assert len(job.orders(Form)) == 1
