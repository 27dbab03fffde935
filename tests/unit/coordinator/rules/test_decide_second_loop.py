"""A script that trains again, in another `job.epochs`, trains: it grows, is saved, and its lost ranks are replaced."""

from __future__ import annotations

from elastic_launcher.control.messages import (
    Active,
    Done,
    End,
    Ended,
    Form,
    Formed,
    PhaseStarted,
    Progress,
    Save,
    Summed,
    Warm,
)
from elastic_launcher.coordinator.model.observations import SaveAsked
from tests.support.played_job import Job, lose, training

SUMS = {"0.end.1": {"named": {"loss": 0.5}}}


def between(nodes: int = 1) -> Job:
    """A job whose first phase is over on all members."""
    job = training(nodes)
    job.report_all(job.state.group, Done(30, 960))
    job.look()
    return job


def test_nothing_changes_between_two_phases() -> None:
    job = between(2)
    job.target(3)
    job.tick(5)
    assert not job.look()


def test_a_job_that_trains_again_grows_again() -> None:
    job = between()
    job.target(2)
    job.report(1, PhaseStarted(1, 30, SUMS))
    assert [one.node for one in job.started] == [1, 2]
    job.warm(2)
    assert job.form.mode == "grow"
    assert (job.state.phase, job.state.epoch, dict(job.state.sums)) == (1, 0, SUMS)


def test_a_joiner_gets_the_sums_of_loops_outside_of_any_epochs() -> None:
    job = training(1)
    job.report(1, Summed({"0.3.1": 0.5}))
    assert dict(job.state.sums) == {"0.3.1": 0.5}
    job.report(1, Summed({"0.4.1": 0.25}))
    assert dict(job.state.sums) == {"0.4.1": 0.25}


def test_a_job_that_trains_again_is_saved_when_that_is_asked() -> None:
    job = between()
    job.feed(SaveAsked(job.now))
    assert not job.orders(Save)
    job.report(1, PhaseStarted(1, 30))
    job.feed(SaveAsked(job.now))
    assert job.orders(Save)


def test_a_rank_that_is_lost_when_it_trains_again_is_replaced() -> None:
    job = between(2)
    job.report_all((1, 2), PhaseStarted(1, 30))
    lose(job, 2)
    job.break_step([1], 1, 31)
    job.tick()
    assert (job.form.mode, job.form.members) == ("recover", (1,))
    job.complete(31)
    job.node_exited(2)
    assert [one.node for one in job.started] == [1, 2, 3]


def test_the_end_of_a_phase_that_is_told_late_ends_no_later_one() -> None:
    job = training(2)
    job.report(1, Done(30, 960))
    job.report(1, PhaseStarted(1, 30))
    job.report(2, Done(30, 960))
    assert not job.state.over
    job.report(2, PhaseStarted(1, 30))
    job.report_all((1, 2), Done(60, 1920, phase=1))
    assert job.state.over
    job.report_all((1, 2), Ended(60, True))
    for member in (1, 2):
        job.rank_ended(member, 0)
        job.node_exited(member)
    assert job.finish is not None and job.finish.exit_code == 0


def test_who_was_sent_away_at_the_end_of_a_phase_is_replaced_in_the_next() -> None:
    job = training(1)
    job.target(2)
    job.join(2)
    job.report(1, Done(30, 960))
    assert job.told(End) == [2]
    job.report(1, PhaseStarted(1, 30))
    assert job.killed == [2]
    job.rank_ended(2, 0)
    job.node_exited(2)
    job.tick()
    assert [one.node for one in job.started] == [1, 2, 3]
    assert not job.events("node_failed") and job.finish is None


def test_who_waits_in_a_phase_that_was_left_early_goes_on_to_the_next() -> None:
    job = training(1)
    job.target(2)
    job.join(2)
    job.report(1, PhaseStarted(1, 30))
    assert not job.killed and not job.told(End)
    job.report(2, Warm({"dataset": 100}))
    assert job.orders(Form)[-1].mode == "grow"


def test_the_epoch_of_an_earlier_phase_is_not_that_of_the_present_one() -> None:
    job = training(2)
    job.report(1, Progress(20, 3))
    job.report(2, PhaseStarted(1, 30))
    job.report(1, Progress(30, 4))
    assert job.state.epoch == 0
    job.report(1, Progress(35, 1, phase=1))
    assert (job.state.phase, job.state.epoch) == (1, 1)
    assert ["phase" in event for event in job.events("progress")] == [False, False, True]


def test_the_last_line_counts_the_samples_of_all_steps_that_it_counts() -> None:
    """Of a script that leaves its loop early, rank 0's last report may be a second old."""
    job = training(1)
    job.report(1, Progress(20, 2, epochs=8, samples=640))
    job.report(1, Ended(25, False, samples=800))
    job.rank_ended(1, 0)
    job.node_exited(1)
    assert job.finish is not None
    assert job.finish.message == "done: 25 steps, 800 samples; the script ended in epoch 3 of 8"


def test_a_phase_that_is_over_before_its_first_generation_is_known_sends_nobody_away() -> None:
    """What ranks report of a short phase may come before the last of them has told of its first step."""
    job = Job(2, 1, target=2)
    job.warm(1, 2)
    job.report_all((1, 2), Formed(1))
    job.report(1, Active(1, 0, 1))
    job.report(1, Done(4, 32))
    job.report(1, PhaseStarted(1, 4))
    assert not job.killed and not job.told(End)
    job.report(2, Active(1, 0, 1))
    assert job.state.group == (1, 2) and not job.state.over


def test_with_an_adaptive_batch_the_last_line_counts_statistical_epochs() -> None:
    job = training(1)
    job.report(1, Progress(25, 9, epochs=8, samples=800, statistical_epoch=6.5))
    job.report(1, Ended(25, False, samples=800))
    job.rank_ended(1, 0)
    job.node_exited(1)
    assert job.finish is not None
    assert job.finish.message == "done: 25 steps, 800 samples; the script ended after 6.50 of 8 statistical epochs"
