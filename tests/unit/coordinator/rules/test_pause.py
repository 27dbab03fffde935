"""A job that may wait for quota is saved, loses all its nodes, and goes on from what is saved when quota is back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_launcher.checkpoint.changes import OF_SCRIPT
from elastic_launcher.config import JobConfig
from elastic_launcher.control.messages import Done, Failed, Halted, Save, Saved, SaveFailed
from elastic_launcher.coordinator.api.live_status import phase
from elastic_launcher.coordinator.model.actions import FindResumePoint
from elastic_launcher.coordinator.model.observations import Interrupted, ResumePointFound, StopAsked
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.coordinator.resume.resume_search import used_up
from elastic_launcher.workdir import Past
from tests.support.checkpoints import JOB, manifest
from tests.support.played_job import Job, lose, training

WAIT = 600.0
SAME = {name: getattr(JOB, name) for name in OF_SCRIPT}
WHY = "the hint allows 0 GPUs, the job needs 1"


def losing(nodes: int = 2, minimum: int = 1) -> Job:
    """Returns a job that has lost its quota, and is being saved."""
    job = training(nodes, minimum, wait_for_quota=WAIT)
    job.target(0, message=WHY)
    return job


def save(job: Job, step: int = 11) -> None:
    job.report(job.state.group[0], Saved(step, f"job/checkpoints/step-{step:08}", 100, 0.01, 0.1))
    job.report(job.state.group[0], Halted(step))


def end_nodes(job: Job) -> None:
    for node in job.state.nodes.values():
        if node.phase is not Phase.GONE:
            job.node_exited(node.number, -9)


def begin_again(job: Job, step: int | None = 11) -> None:
    """Has what is saved found, as the coordinator does."""
    assert any(isinstance(action, FindResumePoint) for action in job.look())
    past = used_up(job.state, Past())
    folder = None if step is None else Path(f"job/checkpoints/step-{step:08}")
    origin = Origin(past, folder, None if step is None else manifest(step))
    config = JobConfig(script="train.py", min_nodes=job.state.rules.min_nodes, max_nodes=4, wait_for_quota=WAIT)
    job.feed(ResumePointFound(job.now, origin.first_state(config, job.state.rules.store)))


def waiting(nodes: int = 2, minimum: int = 1) -> Job:
    """Returns a job that waits for quota, saved at step 11."""
    job = losing(nodes, minimum)
    save(job)
    end_nodes(job)
    begin_again(job)
    return job


def test_a_job_whose_saves_take_long_has_three_times_as_long_to_lose_its_quota() -> None:
    job = training(2, 1, wait_for_quota=WAIT)
    job.report(1, Saved(9, "job/checkpoints/step-00000009", 100, 0.01, 80.0))
    job.target(0, message=WHY)
    job.tick(239.0)
    assert job.killed == []
    job.tick(2.0)
    assert job.killed == [1, 2]


def test_it_is_saved_before_its_nodes_end_and_begun_again_after() -> None:
    job = losing()
    assert job.told(Save) == [1, 2] and job.orders(Save)[0].halt
    assert job.events("quota_lost") == [{"step": 10, "message": WHY}]
    job.tick(5.0)
    assert job.killed == [] and job.finish is None
    save(job)
    assert job.killed == [1, 2]
    job.node_exited(1, -9)
    assert not any(isinstance(action, FindResumePoint) for action in job.actions)
    job.node_exited(2, -9)
    begin_again(job)
    assert phase(job.state) == "waiting for quota"
    assert job.events("quota_wait") == [
        {"step": 11, "message": f"waiting for quota, without any process, up to 600 s: {WHY}"}
    ]
    job.tick(100.0)
    assert len(job.started) == 2 and job.finish is None


def test_it_goes_on_under_new_numbers_when_quota_is_back() -> None:
    job = waiting()
    formations = job.state.formations
    job.tick(100.0)
    job.target(1)
    assert job.events("quota_back") == [{"step": 11, "seconds": 100.0}]
    assert [(one.node, one.first_member) for one in job.started[2:]] == [(3, 3)]
    job.warm(3, fingerprint=SAME)
    assert job.form.formation == formations + 1 and job.form.generation == 2
    job.complete(11)
    assert job.state.generation_number == 2 and job.state.step == 12
    assert phase(job.state) == "training"
    job.train_to_the_end(40)
    assert job.finish is not None and job.finish.exit_code == 0


def test_it_can_lose_its_quota_again_and_again() -> None:
    job = waiting()
    job.target(2)
    job.warm(3, 4, fingerprint=SAME)
    job.complete(11)
    job.target(0, message=WHY)
    save(job, 30)
    assert job.killed == [1, 2, 3, 4]
    end_nodes(job)
    begin_again(job, 30)
    job.target(1)
    assert job.started[-1].node == 5
    assert len(job.events("quota_back")) == 2


def test_quota_that_is_back_before_the_nodes_are_gone_is_used_then() -> None:
    job = losing()
    job.target(2)
    save(job)
    assert len(job.started) == 2
    end_nodes(job)
    begin_again(job)
    assert [one.node for one in job.started[2:]] == [3, 4]


def test_too_little_for_the_minimum_starts_nothing() -> None:
    job = waiting(2, minimum=2)
    job.target(1)
    job.tick(1.0)
    assert len(job.started) == 2 and not job.events("quota_back")


def test_nodes_that_have_not_trained_end_at_once_and_it_waits() -> None:
    job = Job(target=2, wait_for_quota=WAIT)
    job.warm(1)
    job.target(0, message=WHY)
    assert job.killed == [1, 2] and job.told(Save) == []
    end_nodes(job)
    begin_again(job, None)
    job.target(1)
    assert [one.node for one in job.started] == [1, 2, 3]


def lost_ranks(job: Job) -> None:
    for member in (1, 2):
        lose(job, member)


def never_saved(job: Job) -> None:
    job.report(1, SaveFailed(11, "No space left on device"))
    job.tick(61.0)


@pytest.mark.parametrize("happens", [lost_ranks, never_saved])
def test_where_the_save_comes_to_nothing_it_goes_on_from_an_earlier_one(happens: Callable[[Job], None]) -> None:
    job = losing()
    happens(job)
    assert job.finish is None
    end_nodes(job)
    begin_again(job, 4)
    job.target(1)
    assert job.state.step == 4 and job.started[-1].node == 3


def test_a_script_that_fails_while_it_is_saved_ends_the_job() -> None:
    job = losing()
    job.report(1, Failed("ValueError: boom"))
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 1


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (lambda job: Interrupted(job.now, signal.SIGINT), 130),
        (lambda job: Interrupted(job.now, signal.SIGTERM), 75),
        (lambda job: StopAsked(job.now, "stopped by `elastic-launcher stop`"), 75),
    ],
)
def test_whoever_stops_it_while_it_waits_need_not_wait(stop: Callable[[Job], Interrupted], code: int) -> None:
    job = waiting()
    job.feed(stop(job))
    assert job.finish is not None and job.finish.exit_code == code
    assert job.finish.message.endswith(
        " while it waited for quota; step 11 is saved in job/checkpoints/step-00000011, the same command resumes "
        "from there"
    )


def test_whoever_stops_it_while_it_is_saved_waits_for_that() -> None:
    job = losing()
    job.feed(Interrupted(job.now, signal.SIGINT))
    assert job.finish is None
    save(job)
    assert job.finish is not None and job.finish.exit_code == 130 and job.killed == []


def test_whoever_stops_it_while_it_is_saved_has_the_same_time_for_that() -> None:
    job = losing()
    job.tick(30.0)
    job.feed(StopAsked(job.now, "stopped by `elastic-launcher stop`"))
    job.tick(31.0)
    assert job.finish is None and job.killed == []
    job.tick(30.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_a_training_that_ends_before_it_is_saved_is_done() -> None:
    job = losing()
    job.report_all(job.state.group, Done(400))
    job.tick(100.0)
    assert job.killed == []
    job.train_to_the_end(400)
    assert job.finish is not None and job.finish.exit_code == 0


def test_it_waits_no_longer_than_was_asked() -> None:
    job = waiting()
    job.tick(WAIT - 1)
    assert job.finish is None
    job.tick(1.0)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith(f"no quota within the 600 s of --wait-for-quota: {WHY}; step 11 is saved in ")


def paused_by_hint(wait: float) -> Job:
    """Returns a job that waits for quota because its hint says so, saved at step 11."""
    job = training(2)
    job.target(0, message=WHY, wait=wait)
    save(job)
    end_nodes(job)
    begin_again(job)
    return job


def test_it_waits_as_long_as_the_hint_says() -> None:
    job = paused_by_hint(60.0)
    assert job.events("quota_wait")[-1]["message"] == f"waiting for quota, without any process, up to 60 s: {WHY}"
    job.tick(59.0)
    assert job.finish is None
    job.tick(1.0)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith(f"no quota within the 60 s of the hint's waitSeconds: {WHY}; step 11 is saved")


@pytest.mark.parametrize(("wait", "left"), [(90.0, 30.0), (60.0, 0.0), (0.0, 0.0)])
def test_a_hint_that_changes_the_wait_changes_when_it_is_over(wait: float, left: float) -> None:
    job = paused_by_hint(600.0)
    job.tick(60.0)
    job.target(0, message=WHY, wait=wait)
    if left:
        job.tick(left - 1)
        assert job.finish is None
        job.tick(1.0)
    else:
        job.tick()
    assert job.finish is not None and job.finish.exit_code == 75


def test_without_the_option_it_ends() -> None:
    job = training(2)
    job.target(0, message=WHY)
    save(job)
    assert job.finish is not None and job.finish.exit_code == 75
