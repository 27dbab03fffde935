"""A script that ends while others train on: whether it failed, and may cost its node only, is said by its exit code."""

from __future__ import annotations

import pytest

from elastic_launcher.control.messages import Abandon, Active, Done, End, Ended, Failed, Formed
from elastic_launcher.coordinator.model.observations import NoticeExpires
from elastic_launcher.coordinator.rules.ending import EXIT_SECONDS
from tests.support.played_job import Job, lose, redo, training

NEARLY = EXIT_SECONDS - 0.1


def ends_with(job: Job, member: int, code: int, step: int = 20) -> None:
    job.report(member, Ended(step, False))
    job.rank_ended(member, code)


def finished(job: Job) -> tuple[int, str]:
    job.tick(1.1)
    assert job.finish is not None
    return job.finish.exit_code, job.finish.message


@pytest.mark.parametrize("peers", ["break off first", "break off between", "break off last"])
def test_an_exit_code_within_the_loop_costs_its_node_where_that_is_wanted(peers: str) -> None:
    job = training(3, max_failures=1)
    formation = job.state.group_formation
    if peers == "break off first":
        job.break_step((1, 3), formation, 20)
    job.report(2, Ended(20, False))
    if peers == "break off between":
        job.break_step((1, 3), formation, 20)
    assert job.state.formation is None, "it is not known yet whether the training is over"
    job.rank_ended(2, 3)
    if peers == "break off last":
        job.break_step((1, 3), formation, 20)
    assert [event["message"] for event in job.events("node_lost")] == [
        "member 2 (rank 1, node 2) exited with code 3 after step 20"
    ]
    job.complete(20)
    assert job.state.group == (1, 3) and not job.state.over
    job.node_exited(2, 3)
    assert [one.node for one in job.started] == [1, 2, 3, 4]
    job.warm(4)
    job.complete(21)
    assert job.state.group == (1, 3, 4)
    job.train_to_the_end(400)
    assert finished(job) == (0, "done: 400 steps, 25600 samples")


def test_an_exit_code_within_the_loop_ends_the_job_where_nothing_is_borne() -> None:
    job = training(3)
    job.report(2, Ended(20, False))
    job.break_step((1, 3), job.state.group_formation, 20)
    job.rank_ended(2, 3)
    said = "the script of member 2 (rank 1, node 2) exited with code 3 after step 20; nothing was saved"
    assert finished(job) == (1, said)


def test_an_exit_code_on_the_only_rank_that_is_left_ends_the_job() -> None:
    job = training(2, max_failures=9)
    ends_with(job, 2, 3)
    redo(job, job.state.group_formation, 20)
    ends_with(job, 1, 4)
    assert finished(job)[0] == 1


@pytest.mark.parametrize("borne", [0, 9])
@pytest.mark.parametrize("first", ["it", "the others"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_exit_code_after_the_loop_fails_the_job(borne: int, first: str, ranks: int) -> None:
    """Without `job.epochs` nobody says that the loop is over before the script ends."""
    job = training(ranks, max_failures=borne)
    others = range(2, ranks + 1)
    if first == "it":
        ends_with(job, 1, 3)
    for member in others:
        ends_with(job, member, 0)
    if first == "the others":
        ends_with(job, 1, 3)
    job.tick(20)
    code, message = finished(job)
    assert code == 1 and "member 1 (" in message and "exited with code 3" in message


@pytest.mark.parametrize("borne", [0, 9])
@pytest.mark.parametrize("first", ["it", "another"])
def test_an_exception_after_the_loop_fails_the_job(borne: int, first: str) -> None:
    job = training(3, max_failures=borne)
    if first == "another":
        job.report(2, Ended(20, False))
    job.report(1, Failed("OSError: disk full", "Traceback"))
    job.rank_ended(1, 1)
    if first == "it":
        job.report(2, Ended(20, False))
    job.rank_ended(2, 0)
    ends_with(job, 3, 0)
    job.tick(20)
    assert "OSError: disk full" in finished(job)[1]
    assert job.finish is not None
    assert (job.finish.exit_code, job.finish.traceback, job.finish.curable) == (1, "Traceback", False)


def test_a_sibling_that_is_ended_for_a_crash_after_the_scripts_had_ended_has_not_failed() -> None:
    job = training(2, nproc=2)
    job.report_all((1, 2, 3, 4), Ended(20, False))
    job.rank_ended(1, signal=11)
    job.rank_ended(2, 75)
    job.rank_ended(3, 0)
    job.rank_ended(4, 0)
    for node in (1, 2):
        job.node_exited(node)
    assert finished(job) == (0, "done: 20 steps")


@pytest.mark.parametrize("noticed", [2, 3])
def test_a_notice_while_an_exit_code_is_waited_for_excuses_nobody(noticed: int) -> None:
    job = training(3)
    job.report(2, Ended(20, False))
    job.notice(noticed)
    job.feed(NoticeExpires(job.now, (noticed,)))
    job.rank_ended(2, 3)
    assert finished(job)[0] == 1


def test_scripts_that_end_one_after_the_other_without_epochs_are_done() -> None:
    job = training(3, max_failures=1)
    for member in (2, 1, 3):
        ends_with(job, member, 0)
        job.tick(1)
    job.tick(20)
    assert job.finish is not None
    assert (job.finish.exit_code, job.finish.message) == (0, "done: 20 steps")
    assert job.told(Abandon) == []


def test_nobody_waits_for_exit_codes_once_all_scripts_have_ended() -> None:
    job = training(2)
    job.report_all((1, 2), Ended(20, False))
    assert job.state.over and job.told(End) == [1, 2]


def test_a_process_that_does_not_come_to_its_end_is_not_waited_for() -> None:
    job = training(3, max_failures=1)
    job.report(2, Ended(20, False))
    job.break_step((1, 3), job.state.group_formation, 20)
    job.tick(NEARLY)
    assert job.state.verdict is None and job.state.formation is None
    job.tick(0.2)
    code, message = finished(job)
    assert code == 1 and message.startswith("rank 1's script (member 2, node 2) ended after step 20 while other")


def test_nothing_is_changed_while_an_exit_code_is_waited_for() -> None:
    job = training(2)
    job.target(3)
    job.join(3)
    job.report(2, Ended(20, False))
    job.warm(3)
    job.target(4)
    job.tick(1)
    assert job.state.formation is None and len(job.started) == 3
    job.rank_ended(2, 0)
    assert job.told(End) == [3], "the training is over"


def test_a_formation_that_was_under_way_is_given_up_for_the_lost() -> None:
    job = training(2, max_failures=1)
    job.target(3)
    job.warm(3)
    formation = job.state.formation
    assert formation is not None
    job.report(2, Ended(20, False))
    job.report_all((1, 3), Formed(formation.number))
    job.rank_ended(2, 3)
    job.break_step((1,), job.state.group_formation, 20)
    job.report_all((1, 3), Formed(job.form.formation))
    job.report(1, Active(job.form.formation, 20, 21, 0, 0.01))
    assert job.finish is None and 1 in job.state.group and 2 not in job.state.group


def test_one_that_is_killed_while_an_exit_code_is_waited_for_is_lost_after_the_training() -> None:
    job = training(3)
    job.report(2, Ended(20, False))
    lose(job, 3)
    job.rank_ended(2, 0)
    assert job.state.over
    ends_with(job, 1, 0)
    job.tick(20)
    code, message = finished(job)
    assert code == 1 and "member 3 (rank 2, node 3) was lost" in message
    assert job.finish is not None and job.finish.curable


def test_the_end_of_the_epochs_waits_for_nothing() -> None:
    job = training(2)
    job.report(1, Done(400))
    job.report(1, Ended(400, True))
    assert job.state.over


@pytest.mark.parametrize("borne", [0, 1])
def test_who_waits_to_join_is_sent_away_at_the_end_alone(borne: int) -> None:
    job = training(1, max_failures=borne)
    job.target(2)
    job.join(2)
    ends_with(job, 1, 3)
    assert job.killed == [] and not job.events("node_left")
    assert finished(job)[0] == 1
