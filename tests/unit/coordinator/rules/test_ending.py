"""How a job ends: done, or because something was lost, and what is said about it."""

from __future__ import annotations

import pytest

from elastic_launcher.control.messages import (
    Active,
    Done,
    End,
    Ended,
    Fail,
    Failed,
    Form,
    Formed,
    Log,
    Progress,
    StepFailed,
)
from elastic_launcher.coordinator.model.actions import Emit
from tests.support.played_job import Job, training


def test_a_job_is_done_when_all_have_ended_well() -> None:
    job = training(2)
    job.train_to_the_end(step=400)
    assert job.finish is not None
    assert (job.finish.exit_code, job.finish.message) == (0, "done: 400 steps, 25600 samples")
    assert job.told(Fail) == []


def test_all_are_told_when_every_script_has_ended() -> None:
    job = training(2)
    job.report_all((1, 2), Done(400))
    job.report(1, Ended(400, True))
    assert job.told(End) == []
    job.report(2, Ended(400, True))
    assert job.told(End) == [1, 2]


def test_a_stop_says_its_reason() -> None:
    job = training(1)
    job.report(1, Done(40, None, "early stopping"))
    job.report(1, Ended(40, True))
    job.node_exited(1)
    assert job.finish is not None
    assert job.finish.message == "done (early stopping): 40 steps"


def test_a_job_whose_agents_do_not_end_is_done_all_the_same() -> None:
    job = training(1)
    job.report(1, Done(400))
    job.rank_ended(1, 0)
    job.tick(14)
    assert job.finish is None
    job.tick(2)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_a_job_all_of_whose_scripts_break_off_is_done() -> None:
    job = training(2)
    for member in (1, 2):
        job.report(member, Ended(20, False))
        job.rank_ended(member, 0)
        job.node_exited(member)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_nothing_is_changed_once_the_training_is_over() -> None:
    job = training(2)
    job.target(3)
    job.join(3)
    job.report(1, Done(400))
    assert job.told(End) == [3]
    job.look()
    job.warm(3)
    job.notice(2)
    job.target(1)
    job.target(0)
    job.tick(100)
    assert job.finish is None
    assert all(isinstance(action, Emit) for action in job.look())
    assert len(job.orders(Form)) == 1
    job.train_to_the_end(400)
    assert job.finish is not None
    assert job.finish.exit_code == 0


@pytest.mark.parametrize("code", [0, 75])
def test_how_joiners_end_does_not_matter_once_the_training_is_over(code: int) -> None:
    job = training(1)
    job.target(2)
    job.join(2)
    job.report(1, Done(400))
    job.report(2, Failed("SystemExit"))
    job.rank_ended(2, code)
    assert job.events("node_failed") == []
    job.train_to_the_end(400)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_a_joiner_whose_first_step_was_the_last_is_not_sent_away() -> None:
    job = training(1)
    job.target(2)
    job.warm(2)
    job.report_all((1, 2), Formed(2))
    job.report(1, Active(2, 400, 400))
    job.report(1, Done(400))
    assert job.told(End) == []
    job.report(2, Active(2, 400, 400))
    assert job.state.group == (1, 2)
    job.train_to_the_end(400)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_leavers_whose_training_ends_before_the_boundary_are_done_like_all() -> None:
    job = training(2)
    job.target(1)
    job.report_all((1, 2), Formed(2))
    job.train_to_the_end(400)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_an_exception_counts_more_than_a_death_that_was_seen_before() -> None:
    job = training(2)
    job.report(1, StepFailed(1, 10, "Connection closed"))
    job.rank_ended(2, 1)
    job.report(2, Failed("ValueError: boom", "Traceback...\nValueError: boom"))
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.message == "member 2 (rank 1, node 2) failed after step 10: ValueError: boom; nothing was saved"
    assert job.finish.traceback.endswith("boom")


def test_an_exit_code_that_an_exception_elsewhere_hides_is_told_too() -> None:
    job = training(2)
    job.report(1, Failed("RuntimeError: rank 1 left the training loop."))
    job.rank_ended(2, 5)
    assert job.finish is not None
    assert job.finish.message == (
        "member 1 (rank 0, node 1) failed after step 10: RuntimeError: rank 1 left the training loop; "
        "member 2 (rank 1, node 2) exited with code 5; nothing was saved"
    )


def test_no_more_evidence_than_that_of_all_is_waited_for() -> None:
    job = training(2)
    job.report_all((1, 2), Failed("ValueError: boom"))
    assert job.finish is not None
    assert "member 1 (rank 0, node 1)" in job.finish.message


def test_an_exit_code_is_the_scripts_own() -> None:
    job = training(2)
    job.rank_ended(1, 3)
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.message == (
        "the script of member 1 (rank 0, node 1) exited with code 3 after step 10; nothing was saved"
    )
    assert not job.finish.uncaught


def test_the_step_of_an_exception_is_the_ranks_own() -> None:
    job = training(2, step=10)
    job.report(2, Failed("ValueError: boom", step=12))
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.message == "member 2 (rank 1, node 2) failed at step 12: ValueError: boom; nothing was saved"
    assert job.state.step == 12


def test_a_script_that_fails_before_init_may_say_why_in_its_log() -> None:
    job = Job(target=1)
    job.rank_ended(1, 1)
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.uncaught
    [lost] = job.events("node_lost")
    assert lost["message"] == "the script of member 1 (node 1) exited with code 1 before training began"
    assert job.finish.message == f"{lost['message']}; nothing was saved"


@pytest.mark.parametrize("evidence", ["broken", "broken before", "done", "progress"])
def test_a_script_that_ends_while_others_train_on(evidence: str) -> None:
    job = training(2)
    if evidence == "broken before":
        job.report(1, StepFailed(1, 20, "Connection closed"))
    job.report(2, Ended(20, False))
    job.rank_ended(2, 0)
    if evidence == "broken":
        job.report(1, StepFailed(1, 20, "Connection closed"))
    if evidence == "done":
        job.report(1, Done(21))
    if evidence == "progress":
        job.report(1, Progress(21, 0))
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert job.finish.message == (
        "rank 1's script (member 2, node 2) ended after step 20 while other ranks train on; "
        "end all ranks at one step with job.stop(); nothing was saved"
    )


def test_a_process_that_just_ends_while_others_train_on() -> None:
    job = training(2)
    job.rank_ended(2, 0)
    job.report(1, StepFailed(1, 20, "Connection closed"))
    job.tick(1.1)
    assert job.finish is not None
    assert "rank 1's script" in job.finish.message


def test_an_exception_after_the_training_fails_the_job() -> None:
    job = training(2)
    job.report_all((1, 2), Done(400))
    job.report(1, Failed("OSError: disk full"))
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "failed after the training, at step 400: OSError: disk full" in job.finish.message


def test_progress_and_logged_values_become_events() -> None:
    job = training(2)
    job.report(1, Progress(30, 1, 0.25, 900.0, 24, 4, 96, 1920))
    job.report(1, Log(30, 0, {"accuracy": 0.9}))
    job.report(1, Log(31, 0, {"lr": 0.1}))
    assert job.events("progress") == [
        {
            "step": 30,
            "epoch": 1,
            "loss": 0.25,
            "samples_per_second": 900.0,
            "steps_per_epoch": 24,
            "epochs": 4,
            "total_steps": 96,
            "samples": 1920,
            "world_size": 2,
        }
    ]
    assert job.events("log")[0] == {"step": 30, "rank": 0, "values": {"accuracy": 0.9}}
    assert job.state.logged.last() == {"accuracy": 0.9, "lr": 0.1}
    assert (job.state.step, job.state.epoch, job.state.samples) == (30, 1, 1920)


def test_what_is_said_by_one_that_does_not_train_is_not_taken() -> None:
    job = Job(target=1)
    job.join(1)
    job.report(1, Progress(30, 1, 0.25))
    job.report(1, Log(30, 0, {"accuracy": 0.9}))
    assert job.events("progress") == job.events("log") == []
