"""How a job grows and shrinks: by hints and by notice."""

from __future__ import annotations

from elastic_launcher.control.messages import Active, Failed, Form, Formed, Halted, Left
from elastic_launcher.coordinator.model.actions import NoteNotice
from tests.support.played_job import growing, training


def test_growth_appends_joiners_and_gives_them_the_state_of_survivors_in_turn() -> None:
    job = growing(survivors=2, joiners=3)
    assert (job.form.mode, job.form.cause, job.form.generation) == ("grow", "hint", 2)
    assert job.form.members == (1, 2, 3, 4, 5)
    assert job.form.joiners == (3, 4, 5)
    assert job.form.sources == {3: 1, 4: 2, 5: 1}
    job.complete(step=20, pause=0.03)
    event = job.events("generation_formed")[-1]
    assert (event["world_size"], event["joined"], event["first_step"]) == (5, [3, 4, 5], 21)
    assert event["pause_seconds"] == 0.03


def test_the_pause_is_the_longest_among_survivors() -> None:
    job = growing(survivors=2, joiners=1)
    for member, pause in ((1, 0.2), (2, 0.4), (3, 9.0)):
        job.report(member, Active(2, 12, 12, 0, pause))
    assert job.events("generation_formed")[-1]["pause_seconds"] == 0.4


def test_nodes_that_come_up_together_join_together() -> None:
    job = training(1)
    job.target(3)
    job.join(2, 3)
    job.warm(2)
    assert len(job.orders(Form)) == 1, "node 3 is about to be warm"
    job.warm(3)
    assert job.form.members == (1, 2, 3)


def test_a_warm_node_waits_only_a_moment_for_others() -> None:
    job = training(1)
    job.target(3)
    job.join(2, 3)
    job.warm(2)
    job.tick(1.1)
    assert job.form.members == (1, 2)


def test_a_warm_node_does_not_wait_for_one_whose_script_does_not_run_yet() -> None:
    job = training(1)
    job.target(3)
    job.warm(2)
    assert job.form.members == (1, 2)


def test_a_lower_target_lets_the_youngest_nodes_leave() -> None:
    job = training(4, nproc=2)
    job.target(2)
    assert (job.form.mode, job.form.cause) == ("shrink", "hint")
    assert job.form.members == (1, 2, 3, 4)
    assert job.form.leavers == (5, 6, 7, 8)
    assert job.form.sources == {}
    assert job.told(Form)[-8:] == [1, 2, 3, 4, 5, 6, 7, 8], "leavers are told too"
    job.complete(step=20)
    event = job.events("generation_formed")[-1]
    assert (event["world_size"], event["nodes"], event["left"], event["cause"]) == (4, 2, [3, 4], "hint")
    assert {one["node"] for one in job.events("node_left")} == {3, 4}
    assert job.killed == [], "they leave by themselves"


def test_leavers_may_end_before_and_after_the_new_generation_stands() -> None:
    job = training(3)
    job.target(1)
    job.report(2, Left(20))
    job.rank_ended(2, 0)
    job.node_exited(2)
    job.rank_ended(3, 0)  # its report is late
    job.report(1, Formed(2))
    job.report(1, Active(2, 20, 21))
    job.report(3, Left(20))
    job.node_exited(3)
    assert job.finish is None
    assert not job.state.over
    assert job.state.group == (1,)
    assert len(job.events("node_left")) == 2


def test_a_leaver_whose_processes_stay_is_killed() -> None:
    job = training(2)
    job.target(1)
    job.complete(step=20)
    job.tick(59)
    assert job.killed == []
    job.tick(2)
    assert job.killed == [2]


def test_a_leaver_that_fails_after_it_left_is_only_said() -> None:
    job = training(2)
    job.target(1)
    job.complete(step=20)
    job.report(2, Failed("RuntimeError: in finally"))
    job.rank_ended(2, 1)
    job.node_exited(2, 1)
    assert job.finish is None
    assert len(job.events("warning")) == 2


def test_a_noticed_node_leaves_and_is_not_replaced() -> None:
    job = training(3)
    job.notice(2)
    assert (job.form.mode, job.form.cause, job.form.leavers) == ("shrink", "notice", (2,))
    assert job.events("notice") == [{"node": 2, "source": "signal"}]
    assert any(isinstance(action, NoteNotice) for action in job.actions)
    job.complete(step=20)
    job.node_exited(2)
    job.tick(3600)
    assert len(job.started) == 3
    job.target(3)
    assert len(job.started) == 4, "the rule for growth has raised the target again"


def test_a_second_notice_to_the_same_node_changes_nothing() -> None:
    job = training(3)
    job.notice(2)
    job.look()
    assert job.notice(2) == ()


def test_a_node_that_leaves_counts_until_it_is_gone() -> None:
    job = training(2)
    job.target(1)
    job.complete(step=20)
    job.target(2)
    assert len(job.started) == 2
    job.node_exited(2)
    assert len(job.started) == 3


def test_below_the_minimum_by_hint_is_75() -> None:
    job = training(2, minimum=2)
    job.target(0, message="the hint allows 1 GPU, fewer than the 2 of the minimum")
    job.report(1, Halted(12))
    assert job.finish is not None
    assert job.finish.exit_code == 75
    assert job.finish.message == (
        "the hint allows 1 GPU, fewer than the 2 of the minimum; stopped after step 12; nothing was saved"
    )


def test_below_the_minimum_by_notice_is_75() -> None:
    job = training(2, minimum=2)
    job.notice(1)
    job.report(1, Halted(12))
    assert job.finish is not None
    assert job.finish.exit_code == 75
    assert job.finish.message == (
        "node 1 must leave (notice) and 1 of at least 2 nodes would stay; stopped after step 12; nothing was saved"
    )


def test_joiners_that_are_warm_are_admitted_before_a_leave_that_needs_them() -> None:
    job = training(1)
    job.target(3)
    job.join(2, 3)
    job.warm(2)  # waits a moment for node 3
    job.notice(1)
    assert (job.form.mode, job.form.members) == ("grow", (1, 2))
    job.complete(step=20)
    assert (job.form.mode, job.form.members, job.form.leavers) == ("shrink", (2,), (1,))


def test_leaves_come_before_joins_and_never_with_them() -> None:
    job = training(3)
    job.target(4)
    job.join(4)
    job.notice(1)
    job.warm(4)
    assert (job.form.mode, job.form.members) == ("shrink", (2, 3))
    job.complete(step=20)
    assert (job.form.mode, job.form.members) == ("grow", (2, 3, 4))


def test_a_target_that_falls_while_a_formation_is_under_way_waits_for_it() -> None:
    job = growing(1, 2)
    job.target(2)
    assert job.look() == []
    job.complete(step=20)
    assert (job.form.mode, job.form.members, job.form.leavers) == ("shrink", (1, 2), (3,))


def test_a_target_that_recovers_before_anybody_was_told_to_leave() -> None:
    job = growing(1, 1)
    job.target(1)
    job.target(2)
    job.complete(step=20)
    assert job.state.formation is None
    assert not any(node.leave for node in job.state.nodes.values())


def test_a_joiner_that_is_told_to_go_while_it_is_admitted_leaves_afterwards() -> None:
    job = growing(1, 1)
    job.notice(2)
    job.complete(step=20)
    assert (job.form.mode, job.form.leavers) == ("shrink", (2,))
