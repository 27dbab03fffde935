"""A job that is told to stop is saved first; one that is told twice, or can't be saved, ends all the same."""

from __future__ import annotations

import math
import signal

import pytest

from elastic_launcher.control.messages import Done, Fail, Failed, Halted, Save, Saved, SaveFailed
from elastic_launcher.coordinator.api.live_status import phase
from elastic_launcher.coordinator.model.observations import Interrupted, SaveAsked, StopAsked
from tests.support.played_job import Job, growing, training


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_an_interrupted_job_ends_when_it_is_saved(number: int, code: int) -> None:
    job = training(2)
    job.feed(Interrupted(job.now, number))
    assert job.finish is None
    assert job.told(Save) == [1, 2] and job.orders(Save)[0].halt
    assert "the job is saved, and then ends" in job.events("warning")[0]["message"]
    job.tick(5.0)
    assert job.finish is None
    job.report(1, Saved(12, "job/checkpoints/step-00000012", 100, 0.01, 0.1))
    assert job.finish is None
    job.report(1, Halted(12))
    assert job.finish is not None
    assert job.finish.exit_code == code
    assert job.finish.message.endswith(
        "after step 12; step 12 is saved in job/checkpoints/step-00000012, the same command resumes from there"
    )
    assert job.events("checkpoint_saved")[0]["step"] == 12
    assert job.told(Fail) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_that_cannot_save_ends_all_the_same(number: int) -> None:
    job = training(2)
    job.feed(Interrupted(job.now, number))
    job.report(1, SaveFailed(11, "No space left on device"))
    assert "step 11 could not be saved: No space left on device" in job.events("warning")[1]["message"]
    job.tick(61.0)
    assert job.finish is not None and job.finish.message.endswith("after step 10; nothing was saved")


def test_a_job_whose_saves_take_long_has_three_times_as_long_to_stop() -> None:
    job = training(2)
    job.report(1, Saved(9, "job/checkpoints/step-00000009", 100, 0.01, 80.0))
    job.feed(StopAsked(job.now, "stopped by `elastic-launcher stop`"))
    job.tick(239.0)
    assert job.finish is None
    job.report(1, Saved(11, "job/checkpoints/step-00000011", 100, 0.01, 85.0))
    job.report(1, Halted(11))
    assert job.finish is not None and "step 11 is saved" in job.finish.message


def test_a_long_save_gets_no_more_time_than_whoever_kills_the_launcher_gives() -> None:
    job = training(2)
    job.report(1, Saved(9, "job/checkpoints/step-00000009", 100, 0.01, 80.0))
    job.feed(StopAsked(job.now, "SIGTERM", 30.0))
    job.tick(20.1)
    assert job.finish is not None and "step 9 is saved" in job.finish.message


def test_a_job_that_is_asked_to_stop_again_waits_for_the_same_checkpoint() -> None:
    job = training(2)
    for why in ("stopped by `elastic-launcher stop`", "its time is over"):
        job.feed(StopAsked(job.now, why))
    assert job.told(Save) == [1, 2] and job.finish is None
    assert phase(job.state) == "stopping"
    job.report(1, Halted(11))
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message == "stopped by `elastic-launcher stop` after step 11; nothing was saved"


@pytest.mark.parametrize(("grace", "saves"), [(600.0, 590.0), (30.0, 20.0), (12.0, 6.0), (2.0, 1.0)])
def test_a_job_whose_launcher_will_be_killed_ends_well_before_that(grace: float, saves: float) -> None:
    job = training(2)
    job.feed(StopAsked(job.now, "SIGTERM", grace))
    job.tick(saves - 0.1)
    assert job.finish is None
    job.tick(0.2)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message == "SIGTERM after step 10; nothing was saved"


@pytest.mark.parametrize(("first", "second"), [(math.inf, 30.0), (30.0, math.inf), (30.0, 600.0)])
def test_of_several_who_stop_a_job_the_one_with_the_least_time_counts(first: float, second: float) -> None:
    job = training(2)
    job.feed(StopAsked(job.now, "the first", first))
    job.feed(StopAsked(job.now, "the second", second))
    assert job.told(Save) == [1, 2]
    job.tick(19.9)
    assert job.finish is None
    job.tick(0.2)
    assert job.finish is not None and job.finish.message.startswith("the first")


def test_a_save_that_fails_is_tried_again_for_as_long_as_there_is_time() -> None:
    job = training(2)
    job.feed(StopAsked(job.now, "SIGTERM", 30.0))
    job.tick(5.0)
    job.report(1, SaveFailed(11, "No space left on device"))
    assert job.events("warning")[-1]["message"].endswith("as long as the job waits for it, 15 s from now on")


def test_a_signal_does_not_wait_for_the_checkpoint_of_a_job_that_was_asked_to_stop() -> None:
    job = training(2)
    job.feed(StopAsked(job.now, "its time is over"))
    job.feed(Interrupted(job.now, signal.SIGINT))
    assert job.finish is not None and job.finish.exit_code == 130


def test_a_job_that_fails_anyway_is_not_stopped() -> None:
    job = training(2)
    job.report(1, Failed("ValueError: boom"))
    job.feed(StopAsked(job.now, "its time is over"))
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 1


@pytest.mark.parametrize(("grace", "saves"), [(math.inf, 60.0), (30.0, 20.0)])
def test_a_job_that_is_stopped_while_it_seems_lost_stops_where_a_joiner_holds_the_state(
    grace: float, saves: float
) -> None:
    job = growing()
    job.rank_ended(1, signal=signal.SIGKILL)
    asked_at = job.now
    job.feed(StopAsked(asked_at, "its time is over", grace))
    assert job.state.verdict is not None and job.state.stopping is None
    job.break_step((2,), job.state.formations, 10)
    assert job.finish is None and job.state.stopping is not None
    assert job.state.stopping.until == asked_at + saves and job.told(Save) == []


def test_a_second_signal_waits_for_no_checkpoint() -> None:
    job = training(2)
    for _ in range(2):
        job.feed(Interrupted(job.now, signal.SIGTERM))
    assert job.finish is not None and job.finish.exit_code == 75


def test_nothing_is_started_or_formed_while_a_job_stops() -> None:
    job = training(2)
    job.feed(Interrupted(job.now, signal.SIGTERM))
    job.target(4)
    job.notice(1)
    job.tick(1.0)
    assert len(job.started) == 2 and job.state.formation is None


def test_a_job_that_ends_by_itself_while_it_is_to_stop_is_done() -> None:
    job = training(2)
    job.feed(Interrupted(job.now, signal.SIGTERM))
    job.train_to_the_end(400)
    assert job.finish is not None and job.finish.exit_code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_interrupts_before_training_say_that_nothing_was_saved(number: int, code: int) -> None:
    job = Job(target=2)
    job.warm(1)
    job.feed(Interrupted(job.now, number))
    assert job.finish is not None
    assert job.finish.exit_code == code
    assert job.finish.message.endswith(" before training began; nothing was saved")
    assert job.told(Fail) == [1]
    assert [order.failed for order in job.orders(Fail)] == [False]


def test_a_checkpoint_on_request_stops_nothing() -> None:
    job = training(2)
    job.feed(SaveAsked(job.now))
    assert job.told(Save) == [1, 2]
    assert not job.orders(Save)[0].halt
    job.report(1, Saved(12, "job/checkpoints/step-00000012", 100, 0.01, 0.1))
    job.report(1, Halted(12))
    assert job.finish is None


def test_nobody_is_asked_to_save_where_nobody_trains() -> None:
    job = training(1)
    job.report(1, Done(400))
    for one in (job, Job(target=1)):
        assert one.feed(SaveAsked(one.now)) == ()


def test_how_a_pipeline_goes_on_is_said_in_its_own_words() -> None:
    job = training(2, resume_advice="; Retry of the run resumes from there")
    job.report(1, Saved(9, "job/checkpoints/step-00000009", 100, 0.01, 0.1))
    for _ in range(2):
        job.feed(Interrupted(job.now, signal.SIGTERM))
    assert job.finish is not None
    assert job.finish.message.endswith("is saved in job/checkpoints/step-00000009; Retry of the run resumes from there")


BY = "stopped by /srv/jobs; after step 10/stop.py"
"""Names of files are the user's: this one holds what our own messages put between their parts, and a place in it."""


def test_a_cause_is_told_whole_whatever_is_in_it() -> None:
    job = training(2)
    job.feed(StopAsked(job.now, BY))
    assert job.events("warning")[0]["message"] == f"{BY} after step 10: the job is saved, and then ends"
    job.report(1, Saved(12, "job/checkpoints/step-00000012", 100, 0.01, 0.1))
    job.report(1, Halted(12))
    assert job.finish is not None and job.finish.message.startswith(f"{BY} after step 12; step 12 is saved")


def test_a_hint_that_ends_the_job_is_told_whole_whatever_its_file_is_called() -> None:
    told = "hints /srv/quota; after step 10/hints.json: the hint allows 1 node, fewer than the minimum of 2"
    job = training(2, minimum=2)
    job.target(1, message=told)
    assert job.events("warning")[0]["message"] == f"{told}: the job is saved, and then ends"
    job.report(1, Saved(12, "job/checkpoints/step-00000012", 100, 0.01, 0.1))
    job.report(1, Halted(12))
    assert job.finish is not None and job.finish.message.startswith(f"{told}; stopped after step 12; step 12 is saved")
