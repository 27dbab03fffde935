"""A node lost without notice costs its unfinished step: the survivors form another group, and it is replaced."""

from __future__ import annotations

import signal

import pytest

from elastic_launcher.control.messages import Abandon, Active, Done, Ended, Failed, Form, Formed, FormFailed, StepFailed
from elastic_launcher.coordinator.model.observations import AgentKilled, NodeExited
from elastic_launcher.coordinator.model.roster import Exit, Phase
from elastic_launcher.coordinator.rules.ending import COLLECT_SECONDS
from tests.support.played_job import Job, growing, lose, redo, training


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_the_survivors_of_any_rank_are_formed_again_and_it_is_replaced(lost: int) -> None:
    job = training(3, step=41)
    lose(job, lost)
    survivors = tuple(number for number in (1, 2, 3) if number != lost)
    assert job.orders(Abandon) == [Abandon(1, survivors)], "so that they load at once what they will do again"
    assert job.told(Abandon) == list(survivors), "so that all see it at once"
    assert job.killed == [lost]
    job.break_step(survivors[:1], 1, 41)
    assert len(job.orders(Form)) == 1, "the other one has not noticed yet"
    job.break_step(survivors[1:], 1, 41)
    assert (job.form.mode, job.form.cause, job.form.members) == ("recover", "failure", survivors)
    assert job.form.sources == {}, "the members see for themselves who is the most advanced"
    job.complete(41)
    event = job.events("generation_formed")[-1]
    assert (event["cause"], event["left"], event["joined"], event["first_step"]) == ("failure", [lost], [], 41)
    job.node_exited(lost, -9)
    assert len(job.started) == 4, "at once"
    job.warm(4)
    assert (job.form.mode, job.form.cause, job.form.members) == ("grow", "failure", (*survivors, 4))
    assert job.finish is None


def test_a_loss_says_who_how_and_where() -> None:
    job = training(2, step=41)
    lose(job, 2)
    message = "member 2 (rank 1, node 2) was killed by SIGKILL after step 41"
    assert job.events("node_lost") == [
        {"node": 2, "member": 2, "signal": 9, "exit_code": None, "step": 41, "message": message}
    ]


def test_survivors_that_say_it_first_wait_until_it_is_known_who_is_lost() -> None:
    job = training(3)
    job.break_step((1, 3), 1, 10)
    assert (job.told(Abandon), job.orders(Abandon)) == ([1, 2, 3], [Abandon(1)])
    job.tick(3600)
    assert len(job.orders(Form)) == 1
    lose(job, 2)
    assert job.form.members == (1, 3)


def test_a_step_that_breaks_off_and_nobody_died_is_done_again_by_all() -> None:
    job = training(2)
    job.break_step((1, 2), 1, 10)
    assert (job.form.mode, job.form.members) == ("recover", (1, 2))


def test_all_of_a_node_goes_with_one_of_its_ranks() -> None:
    job = training(2, nproc=2)
    lose(job, 3)
    job.rank_ended(4, 1)
    job.break_step((1, 2), 1, 10)
    assert job.form.members == (1, 2)
    assert (job.killed, len(job.events("node_lost"))) == ([2], 1)
    assert job.finish is None


@pytest.mark.parametrize("agent", [-signal.SIGKILL, 1])
def test_the_loss_of_an_agent_is_that_of_its_ranks(agent: int) -> None:
    job = training(2, nproc=2)
    job.node_exited(2, agent)
    job.break_step((1, 2), 1, 10)
    assert job.form.members == (1, 2)
    job.tick()
    assert len(job.started) == 3


def test_peers_of_a_killed_agent_go_on_at_once_and_its_place_is_taken_later() -> None:
    job = training(2, nproc=2, step=41)
    job.feed(AgentKilled(job.now, 2, signal.SIGKILL))
    assert (job.told(Abandon), job.killed) == ([1, 2], [2])
    job.break_step((1, 2), 1, 41)
    assert job.form.members == (1, 2)
    job.tick()
    assert len(job.started) == 2
    job.node_exited(2, -signal.SIGKILL)
    assert len(job.started) == 3
    lost = job.events("node_lost")
    assert [one["message"] for one in lost] == ["member 3 (rank 2, node 2) was killed by SIGKILL after step 41"]


def test_a_script_that_failed_before_its_agent_was_killed_is_judged_by_its_own_exit() -> None:
    job = training(2, step=41)
    job.feed(AgentKilled(job.now, 2, signal.SIGKILL, ((0, Exit(3)),)))
    job.tick(COLLECT_SECONDS)
    assert job.finish is not None and job.finish.exit_code == 1
    assert "exited with code 3 after step 41" in job.finish.message


def test_the_end_of_an_agent_whose_node_does_not_train_waits_for_the_whole_nodes() -> None:
    job = training(1)
    job.target(2)
    for node in (2, 99):  # one that comes up, and one of before the job restarted
        assert job.feed(AgentKilled(job.now, node, signal.SIGKILL)) == ()
    job.node_exited(2, -signal.SIGKILL)
    assert len(job.events("node_failed")) == 1


def test_what_the_exit_files_say_counts_more_than_the_agent() -> None:
    job = training(2)
    job.feed(NodeExited(job.now, 2, 1, ((0, Exit(signal=11)),)))
    assert "was killed by SIGSEGV" in job.events("node_lost")[0]["message"]


def test_two_at_once_are_one_recovery() -> None:
    job = training(4)
    lose(job, 1)
    lose(job, 3)
    job.break_step((2, 4), 1, 10)
    assert job.form.members == (2, 4)
    assert len(job.events("node_lost")) == 2


def test_without_anybody_who_holds_the_state_the_job_ends() -> None:
    job = training(1, step=41)
    lose(job, 1)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert job.finish.message == (
        "member 1 (rank 0, node 1) was killed by SIGKILL after step 41; no other node holds the state; "
        "nothing was saved"
    )
    assert job.finish.log_of == (1, 0)


def test_a_rank_that_gave_itself_up_is_a_lost_node_and_no_failure_of_the_script() -> None:
    job = training(2, step=41)
    job.rank_ended(2, 75)
    assert (
        job.events("node_lost")[0]["message"]
        == "member 2 (rank 1, node 2) left by itself, as its log says, after step 41"
    )
    job.break_step((1,), 1, 41)
    assert (job.form.mode, job.form.members, job.finish) == ("recover", (1,), None)


def test_where_all_ranks_gave_themselves_up_the_job_can_restart() -> None:
    job = training(2, step=41)
    job.rank_ended(1, 75)
    job.rank_ended(2, 75)
    assert job.finish is not None and job.finish.curable
    assert "no other node holds the state" in job.finish.message


def test_who_fails_since_a_peer_gave_itself_up_is_not_to_blame() -> None:
    job = training(2, step=41)
    job.rank_ended(2, 75)
    job.report(1, Failed("RuntimeError: Connection closed by peer", "", 41))
    job.rank_ended(1, 1)
    job.tick(10)
    assert job.finish is not None and job.finish.curable


def test_a_script_that_exits_with_75_itself_has_failed() -> None:
    job = training(2, step=41)
    job.report(2, Ended(41, False))
    job.rank_ended(2, 75)
    job.tick(10)
    assert job.finish is not None and not job.finish.curable
    assert "exited with code 75" in job.finish.message


def test_all_that_were_lost_are_named_at_the_end() -> None:
    job = training(2)
    lose(job, 2)
    job.rank_ended(1, signal=signal.SIGSEGV)
    assert job.finish is not None
    assert "member 2 (rank 1, node 2) was killed by SIGKILL" in job.finish.message
    assert "member 1 (rank 0, node 1) was killed by SIGSEGV" in job.finish.message


def test_survivors_below_the_minimum_train_on_until_another_node_is_there() -> None:
    job = training(2, minimum=2)
    lose(job, 2)
    redo(job, 1, 10)
    job.node_exited(2, -9)
    assert job.state.group == (1,)
    job.warm(3)
    job.complete(20)
    assert job.state.group == (1, 3)
    assert job.finish is None


def test_an_exception_ends_the_job_all_the_same() -> None:
    job = training(3)
    job.break_step((1, 3), 1, 10)
    job.report(2, Failed("ValueError: boom"))
    job.rank_ended(2, 1)
    job.tick(1.1)
    assert job.finish is not None
    assert "ValueError: boom" in job.finish.message


def test_a_death_while_survivors_are_formed_again() -> None:
    job = training(4)
    lose(job, 4)
    job.break_step((1, 2, 3), 1, 10)
    lose(job, 3)
    assert Abandon(2) in job.orders(Abandon)
    assert len(job.orders(Form)) == 2
    job.report(1, FormFailed(2, "given up"))
    job.report(2, StepFailed(2, 10, "Connection reset"))  # it had come so far as to train
    assert (job.form.formation, job.form.members) == (3, (1, 2))
    job.complete(10)
    assert job.finish is None


def test_a_generation_in_which_a_step_was_done_was_one_though_not_all_have_said_so() -> None:
    job = training(4)
    lose(job, 4)
    job.break_step((1, 2, 3), 1, 10)
    job.report(1, Active(2, 10, 11))
    lose(job, 3)
    event = job.events("generation_formed")[-1]
    assert (event["world_size"], event["first_step"], job.state.generation) == (3, 10, 2)
    job.break_step((1, 2), 2, 11)
    assert (job.form.mode, job.form.generation, job.form.members) == ("recover", 3, (1, 2))


def test_a_loss_after_somebody_has_done_the_very_first_step_is_one_of_the_group() -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, 2)
    job.report(1, Active(1, 0, 1))
    lose(job, 2)
    job.break_step((1,), 1, 1)
    assert (job.state.generation, job.form.mode, job.form.members) == (1, "recover", (1,))
    assert job.events("node_lost")[0]["node"] == 2


def test_a_recovery_does_not_wait_once_it_is_known_who_was_lost() -> None:
    job = training(3)
    lose(job, 3)
    job.break_step((1, 2), 1, 10)
    job.break_step((1,), 2, 10)
    assert len(job.orders(Form)) == 2
    lose(job, 2)
    assert job.form.members == (1,)


def test_deaths_before_anybody_trained_again_do_not_count_as_breaks() -> None:
    job = training(6)
    for lost in (6, 5, 4, 3, 2):
        lose(job, lost)
        for member in job.state.survivors():
            formation = job.state.formations
            job.report(member, StepFailed(1, 10) if formation == 1 else FormFailed(formation))
    assert job.form.members == (1,)
    assert job.finish is None


def test_a_group_that_can_not_be_formed_again_is_tried_three_times() -> None:
    job = training(2)
    job.break_step((1, 2), 1, step=20)
    for number in (2, 3, 4):
        assert (job.form.mode, job.form.formation) == ("recover", number)
        job.report_all((1, 2), FormFailed(number, "time-out"))
        job.tick(2)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "could be formed in 3 attempts" in job.finish.message


def test_a_loss_while_a_node_joins_gives_up_its_admission_and_admits_it_afterwards() -> None:
    job = growing(2, 1)
    job.report_all((1, 2, 3), Formed(2))
    lose(job, 1)
    assert job.told(Abandon) == [2, 3, 2], "of the admission, then of the group itself"
    job.report(3, FormFailed(2, "lost"))
    job.report(2, StepFailed(2, 10, "lost"))
    assert job.form.members == (2,)
    job.complete(10)
    assert (job.form.mode, job.form.members) == ("grow", (2, 3))


def test_one_that_joined_holds_the_state_like_the_others() -> None:
    job = growing(2, 1)
    job.report_all((1, 2, 3), Formed(2))
    job.report(3, Active(2, 11, 11))
    lose(job, 1)
    job.break_step((3,), 2, 11)
    job.break_step((2,), 2, 11)
    assert (job.form.mode, job.form.members) == ("recover", (2, 3))
    job.complete(11)
    assert job.events("generation_formed")[-1]["joined"] == [3]
    assert job.state.nodes[3].phase is Phase.ADMITTED


def test_one_that_joined_saves_a_job_whose_other_ranks_are_lost() -> None:
    job = growing(1, 1)
    job.report_all((1, 2), Formed(2))
    lose(job, 1)
    assert job.finish is None, "the joiner may hold the state"
    job.break_step((2,), 2, 11)
    assert (job.form.mode, job.form.members) == ("recover", (2,))
    job.complete(11)
    job.tick(5)
    assert job.finish is None


def test_a_joiner_that_has_not_got_the_state_saves_nothing() -> None:
    job = growing(1, 1)
    job.report_all((1, 2), Formed(2))
    lose(job, 1)
    job.report(2, FormFailed(2, "lost"))
    job.tick(1.1)
    assert job.finish is not None
    assert "no other node holds the state" in job.finish.message


def test_one_that_says_too_late_that_it_joined_is_replaced() -> None:
    job = growing(2, 1)
    job.report_all((1, 2, 3), Formed(2))
    lose(job, 2)
    job.break_step((1,), 2, 11)
    assert job.form.members == (1,)
    job.break_step((3,), 2, 11)
    assert job.killed == [2, 3]
    job.complete(11)
    assert job.finish is None


def test_a_death_in_the_first_group_costs_that_node_only() -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, 2)
    job.report_all((1, 2), Formed(1))
    job.report(1, StepFailed(1, 0, "Connection closed by peer"))
    job.rank_ended(2, signal=signal.SIGKILL)
    assert job.killed == [2]
    job.node_exited(2, -9)
    job.tick(2)
    job.warm(3)
    assert (job.form.mode, job.form.members, job.form.sources) == ("start", (1, 3), {3: 1})
    assert job.finish is None


def test_a_leaver_that_is_killed_before_it_left_is_a_loss_that_is_not_replaced() -> None:
    job = training(3)
    job.target(2)
    lose(job, 3)
    assert job.told(Abandon) == [1, 2, 1, 2]
    redo(job, 1, 10)
    job.node_exited(3, -9)
    job.tick(100)
    assert job.state.group == (1, 2)
    assert len(job.started) == 3


def test_a_leaver_that_stays_is_formed_again_and_leaves_then() -> None:
    job = training(3)
    job.notice(3)
    lose(job, 1)
    job.break_step((2, 3), 1, 10)
    assert job.form.members == (2, 3)
    job.complete(10)
    assert (job.form.mode, job.form.members, job.form.leavers) == ("shrink", (2,), (3,))


def test_a_death_after_the_training_ends_the_job_once_the_others_have_ended() -> None:
    job = training(2)
    job.report_all((1, 2), Done(400))
    lose(job, 1)
    assert job.finish is None
    job.report(2, Ended(400, True))
    job.rank_ended(2, 0)
    job.node_exited(2)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "before its script had ended" in job.finish.message
    assert len(job.started) == 2


def test_others_that_evaluate_together_after_the_training_go_on_without_one_that_died() -> None:
    job = training(3)
    job.report_all((1, 2, 3), Done(400))
    lose(job, 1)
    job.break_step((2, 3), 1, 400)
    assert (job.form.mode, job.form.members) == ("recover", (2, 3))
    job.complete(400)
    job.train_to_the_end(400)
    assert job.finish is not None
    assert job.finish.exit_code == 0


def test_one_whose_script_has_ended_is_not_waited_for() -> None:
    job = training(3)
    job.report_all((1, 2, 3), Done(400))
    job.report(2, Ended(400, True))
    lose(job, 1)
    job.break_step((3,), 1, 400)
    assert job.form.members == (3,)


def test_one_that_leaves_when_the_others_are_lost_was_the_last_that_held_the_state() -> None:
    job = training(2)
    job.notice(2)
    lose(job, 1)
    job.rank_ended(2, 0)
    job.node_exited(1, -9)
    job.node_exited(2)
    job.tick(1.1)
    assert job.finish is not None
    assert job.finish.exit_code == 1 and job.finish.curable
    said = "member 1 (rank 0, node 1) was killed by SIGKILL after step 10; no other node holds the state"
    assert job.finish.message.startswith(said)
