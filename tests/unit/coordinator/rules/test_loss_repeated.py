"""How often nodes may be lost, how soon they are replaced, and how many failures of the script are borne."""

from __future__ import annotations

from elastic_launcher.control.messages import Failed
from elastic_launcher.coordinator.model.observations import NodeExited
from tests.support.played_job import lose, redo, training


def test_exceptions_cost_their_node_only_as_often_as_that_is_wanted() -> None:
    job = training(4, max_failures=2)
    job.report(4, Failed("ValueError: boom"))
    job.rank_ended(4, 1)
    redo(job, 1, 10)
    job.rank_ended(3, 3)
    redo(job, 2, 11)
    assert job.finish is None
    assert [event["message"] for event in job.events("node_lost")] == [
        "member 4 (rank 3, node 4) failed (ValueError: boom) after step 10",
        "member 3 (rank 2, node 3) exited with code 3 after step 11",
    ]
    job.report(2, Failed("ValueError: boom"))
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.exit_code == 1


def test_failures_of_an_hour_ago_are_forgotten() -> None:
    job = training(3, max_failures=1)
    job.report(3, Failed("ValueError: boom"))
    redo(job, 1, 10)
    job.tick(3601)
    job.report(2, Failed("ValueError: boom"))
    job.tick(1.1)
    assert job.finish is None


def test_an_exception_on_all_ranks_ends_the_job_however_many_are_wanted() -> None:
    job = training(2, max_failures=9)
    job.report_all((1, 2), Failed("ValueError: boom", "Traceback"))
    job.tick(1.1)
    assert job.finish is not None
    assert "ValueError: boom" in job.finish.message
    assert job.finish.traceback == "Traceback"


def test_replacements_come_later_and_later_while_losses_go_on() -> None:
    job = training(2)
    waited = []
    for node in (2, 3, 4, 5):
        lose(job, node)
        redo(job, job.state.group_formation, job.state.step + 5)
        job.node_exited(node, -9)
        waited.append(0.0)
        while len(job.started) <= node:
            job.tick(0.5)
            waited[-1] += 0.5
        job.warm(node + 1)
        job.complete(job.state.step + 5)
    assert waited == [0.0, 1.0, 2.0, 4.0]
    job.tick(3600)
    lose(job, 6)
    job.node_exited(6, -9)
    assert len(job.started) == 7, "a first one again"


def test_a_step_that_breaks_off_three_times_in_a_row_ends_the_job_and_says_why() -> None:
    job = training(4)
    for lost in (4, 3):
        lose(job, lost)
        redo(job, job.state.group_formation, 10)
    lose(job, 2)
    job.break_step((1,), job.state.group_formation, 10)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "step 10 broke off 3 times in a row" in job.finish.message
    assert "member 2 (rank 1, node 2) was killed by SIGKILL" in job.finish.message


def test_machines_that_are_taken_one_after_another_in_one_step_are_no_failure_of_the_script() -> None:
    job = training(5)
    for node in (5, 4, 3, 2):
        lose(job, node)  # its peers see it first, the cluster tells why later
        redo(job, job.state.group_formation, 10)
        job.feed(NodeExited(job.now, node, -9, why="evicted", taken=True))
    assert job.finish is None
    assert job.state.group == (1,)


def test_losses_with_steps_between_them_are_borne() -> None:
    job = training(5)
    for place, lost in enumerate((5, 4, 3, 2)):
        lose(job, lost)
        redo(job, job.state.group_formation, 10 + place)
    assert job.finish is None
    assert job.state.group == (1,)


def test_the_end_of_a_node_of_before_the_job_restarted_changes_nothing() -> None:
    job = training(2)
    before = job.state
    job.feed(NodeExited(job.now, 99, 0))
    assert job.state == before
