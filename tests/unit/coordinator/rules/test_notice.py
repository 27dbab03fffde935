"""A node whose notice expires leaves within the step: the others do it again, and nobody is blamed."""

from __future__ import annotations

import pytest

from elastic_launcher.control.messages import Abandon, End, Ended, Form, Halted, Save, StepFailed
from elastic_launcher.coordinator.model.observations import Interrupted, NodeNoticed, NoticeExpires
from tests.support.played_job import Job, growing, lose, training


def expire(job: Job, *nodes: int) -> None:
    job.feed(NoticeExpires(job.now, nodes))


def test_the_others_do_the_step_again_without_the_node_that_had_to_go() -> None:
    job = training(3)
    job.notice(2)
    shrink = job.form.formation
    expire(job, 2)
    assert job.orders(Abandon)[0].formation == shrink
    assert set(job.told(Abandon)) == {1, 2, 3} and job.told(End) == [2]
    job.report(2, StepFailed(1, 10, "cut"))
    job.break_step((1, 3), 1, 10)
    assert (job.form.mode, job.form.members, job.form.cause) == ("recover", (1, 3), "notice")


@pytest.mark.parametrize("nodes", [(2,), (1,), (1, 3)])
def test_an_expired_notice_is_a_generation_with_the_cause_notice(nodes: tuple[int, ...]) -> None:
    job = training(3)
    for node in nodes:
        job.notice(node)
    expire(job, *nodes)
    staying = tuple(number for number in (1, 2, 3) if number not in nodes)
    job.break_step(staying, 1, 10)
    assert (job.form.mode, job.form.members, job.form.cause) == ("recover", staying, "notice")
    job.complete(10)
    assert job.events("generation_formed")[-1]["left"] == list(nodes)
    assert [event["node"] for event in job.events("node_left")] == list(nodes)
    for node in nodes:
        job.report(node, Ended(10, True))
        job.rank_ended(node, 0)
        job.node_exited(node)
    job.tick(300)
    assert (job.events("node_lost"), len(job.started), job.finish) == ([], 3, None)


def test_a_step_that_notices_break_is_not_held_against_the_script() -> None:
    job = training(5)
    for node in (5, 4, 3, 2):
        formation = job.state.group_formation
        job.notice(node)
        expire(job, node)
        job.break_step(job.state.survivors(), formation, 10)
        job.complete(9)
    assert job.finish is None and job.state.group == (1,)


def test_a_node_that_is_killed_after_its_notice_is_not_replaced_and_not_counted() -> None:
    job = training(3)
    job.notice(2)
    lose(job, 2)
    job.break_step((1, 3), 1, 10)
    assert job.form.cause == "notice" and job.state.broke == 0 and job.state.losses == 0
    job.complete(10)
    job.node_exited(2, -9)
    job.tick(300)
    assert len(job.started) == 3


def test_a_node_that_is_lost_while_another_one_leaves_is_a_failure() -> None:
    job = training(3)
    job.notice(2)
    expire(job, 2)
    lose(job, 3)
    job.break_step((1,), 1, 10)
    assert (job.form.members, job.form.cause) == ((1,), "failure")
    assert len(job.events("node_lost")) == 1


def test_a_growth_under_way_is_given_up_for_it() -> None:
    job = growing(survivors=2)
    grow = job.form.formation
    job.notice(1)
    expire(job, 1)
    assert grow in [order.formation for order in job.orders(Abandon)]
    job.break_step((2,), 1, 10)
    job.tick(2)
    assert (job.form.mode, job.form.members) == ("recover", (2,))
    job.complete(10)
    assert job.form.mode == "grow"


def test_a_notice_to_a_node_that_a_hint_sends_away_holds_when_the_hint_is_taken_back() -> None:
    job = training(2)
    job.target(1)
    job.notice(2)
    job.target(2)
    assert job.state.nodes[2].leave == "notice"
    assert len(job.events("notice")) == 1


def test_where_no_node_stays_the_job_is_saved_within_the_step_and_ends_with_75() -> None:
    job = training(2)
    job.notice(1)
    job.notice(2)
    expire(job, 1, 2)
    expire(job, 1, 2)
    at_once = [order for order in job.orders(Save) if order.at_once]
    assert len(at_once) == 1 and at_once[0].halt
    job.report(2, Halted(10, saved=False))
    assert job.finish is None
    job.report(1, Halted(10))
    assert job.finish is not None and job.finish.exit_code == 75


def test_after_the_training_a_notice_does_not_expire() -> None:
    job = training(2)
    job.notice(2)
    job.report(1, Ended(10, True))
    before = len(job.actions)
    expire(job, 2)
    assert len(job.actions) == before


def test_another_rank_saves_where_the_first_one_dies_before_it_has_saved() -> None:
    job = training(3)
    job.feed(Interrupted(job.now, 15))
    job.report_all((2, 3), Halted(11, saved=False))
    assert job.finish is None
    lose(job, 1)
    assert [order.saver for order in job.orders(Save)] == [0, 2]
    assert job.told(Save)[-1] == 2
    lose(job, 2)
    assert job.orders(Save)[-1].saver == 3
    job.report(3, Halted(11))
    assert job.finish is not None and job.finish.exit_code == 75
    assert len(job.orders(Form)) == 1


def test_where_too_few_would_stay_the_others_do_the_step_again_and_the_job_is_saved() -> None:
    job = training(3, minimum=3)
    job.feed(NodeNoticed(job.now, 2, "signal"))
    expire(job, 2)
    assert job.orders(Save) == [Save(halt=True)]
    job.break_step((1, 3), 1, 10)
    assert job.form.members == (1, 3)
    job.complete(10)
    job.report(1, Halted(11))
    assert job.finish is not None and job.finish.exit_code == 75
    assert "node 2 must leave (notice) and 2 of at least 3 nodes would stay" in job.finish.message


def test_a_noticed_node_that_is_killed_may_leave_too_few() -> None:
    job = training(2, minimum=2)
    job.feed(NodeNoticed(job.now, 2, "signal"))
    lose(job, 2)
    assert job.orders(Save) == [Save(halt=True)]
    job.break_step((1,), 1, 10)
    job.complete(10)
    job.report(1, Halted(11))
    assert job.finish is not None and job.finish.exit_code == 75
