"""How a job comes to its first generation, or fails to."""

from __future__ import annotations

import signal

import pytest

from elastic_launcher.checkpoint.changes import Resumed
from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Abandon, Active, Done, End, Ended, Failed, Form, Formed, FormFailed
from elastic_launcher.coordinator.model.actions import Emit, Finish, StartNode
from elastic_launcher.coordinator.model.observations import (
    Interrupted,
    MemberJoined,
    MemberSilent,
    NodeExited,
    NodeNotStarted,
)
from elastic_launcher.coordinator.model.roster import Exit, Phase
from tests.support.checkpoints import JOB as IDENTITY
from tests.support.played_job import Job


def test_nodes_are_started_up_to_the_target() -> None:
    job = Job(minimum=1, nproc=2, target=3)
    assert job.started == [StartNode(1, 1, 2), StartNode(2, 3, 2), StartNode(3, 5, 2)]
    assert job.events("node_started")[2] == {"node": 3, "members": [5, 6]}


def test_an_agent_that_could_start_nothing_is_a_node_that_failed_and_no_script_that_ended() -> None:
    job = Job(minimum=2, target=2)
    job.feed(NodeExited(job.now, 1, ExitCode.LAUNCHER_FAILED, last_line="the coordinator gave no answer: HTTP 404"))
    assert job.finish is None
    assert [event["node"] for event in job.events("node_failed")] == [1]
    assert job.events("warning")[0]["message"] == "node 1: the coordinator gave no answer: HTTP 404"
    job.tick(2)
    assert [one.node for one in job.started] == [1, 2, 3]


def test_numbers_go_on_where_an_earlier_run_left_off() -> None:
    job = Job(nproc=2, target=2, first_node=4, first_member=7, generations_before=9)
    assert job.started == [StartNode(4, 7, 2), StartNode(5, 9, 2)]
    job.warm(4)
    assert job.form.generation == 10
    job.complete(40)
    assert job.events("generation_formed")[0]["members"][0] == {"member": 7, "node": 4}
    assert [one.generation for one in job.actions if isinstance(one, Emit)][-1] == 10


@pytest.mark.parametrize(("accepted", "code"), [((), 2), (("seed",), None)])
def test_a_training_that_is_not_the_checkpoints_is_refused_before_its_first_step(
    accepted: tuple[str, ...], code: int | None
) -> None:
    job = Job(target=1, resumes=Resumed(IDENTITY, accepted, "job/checkpoints/step-00000012"))
    job.warm(1, fingerprint={"seed": 8, "loader_seed": 8})
    assert (job.finish.exit_code if job.finish else None) == code
    assert bool(job.orders(Form)) == (code is None)
    if job.finish:
        assert "from job/checkpoints/step-00000012: the seed is 7 there and 8 here" in job.finish.message


def test_nothing_is_started_before_the_target_is_known() -> None:
    job = Job()
    assert job.tick(10) == ()


def test_the_first_generation_forms_as_soon_as_the_minimum_is_warm() -> None:
    job = Job(minimum=2, target=3)
    job.warm(3)
    assert not job.orders(Form)
    job.warm(2)
    form = job.form
    assert (form.mode, form.generation, form.formation, form.cause) == ("start", 1, 1, "start")
    assert form.members == (2, 3)
    assert form.joiners == (3,)
    assert form.sources == {3: 2}
    assert form.store == "127.0.0.1:29500"


def test_a_node_is_warm_when_all_its_members_are() -> None:
    job = Job(minimum=1, nproc=2, target=1)
    job.join(1)
    job.warm(1)
    assert job.events("node_warm") == [{"node": 1}]
    assert job.form.members == (1, 2)


def test_a_generation_is_formed_when_all_its_members_were_active() -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, 2)
    job.complete(step=0)
    assert job.events("generation_formed") == [
        {
            "formation": 1,
            "world_size": 2,
            "nodes": 2,
            "members": [{"member": 1, "node": 1}, {"member": 2, "node": 2}],
            "cause": "start",
            "first_step": 0,
            "pause_seconds": 0.0,
            "joined": [1, 2],
            "left": [],
        }
    ]
    assert job.state.generation == 1
    assert job.state.group == (1, 2)


def test_a_node_that_is_warm_later_joins() -> None:
    job = Job(minimum=1, target=2)
    job.warm(1)
    job.complete()
    job.warm(2)
    assert job.form.mode == "grow"
    assert job.form.cause == "start"


def test_fingerprints_that_differ_end_the_job_and_say_where() -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, fingerprint={"global_batch_size": 64, "dataset": "Digits of 1500 samples"})
    job.warm(2, fingerprint={"global_batch_size": 64, "dataset": "Digits of 1501 samples"})
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "member 1 (node 1) and member 2 (node 2) do not train the same: dataset" in job.finish.message
    assert "1500" in job.finish.message
    assert "1501" in job.finish.message


@pytest.mark.parametrize(("one", "other"), [({"a": 1}, {}), ({}, {"a": 1}), ({"a": 1}, {"a": None})])
def test_a_field_that_only_one_member_has_is_a_difference(one: dict[str, int], other: dict[str, int]) -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, fingerprint={"b": 1, **one})
    job.warm(2, fingerprint={"b": 1, **other})
    assert job.finish is not None
    assert "a is" in job.finish.message


def test_an_exception_before_training_ends_the_job_at_once() -> None:
    job = Job(minimum=1, target=2)
    job.join(1, 2)
    job.report(2, Failed("ValueError: boom", "Traceback ...\nValueError: boom\n"))
    job.rank_ended(2, 1)
    assert job.finish is None, "evidence is collected for a moment"
    job.tick(1.1)
    assert job.finish == Finish(
        1,
        "member 2 (node 2) failed before training began: ValueError: boom; nothing was saved",
        (2, 0),
        "Traceback ...\nValueError: boom\n",
    )


def test_a_script_that_can_not_be_imported_ends_the_job() -> None:
    job = Job(target=1)
    job.rank_ended(1, 1)
    job.tick(1.1)
    assert job.finish is not None
    assert (job.finish.exit_code, job.finish.log_of) == (1, (1, 0))
    assert "the script of member 1 (node 1) exited with code 1 before training began" in job.finish.message


def test_a_rank_that_gave_itself_up_before_training_began_costs_its_node_only() -> None:
    job = Job(minimum=2, target=2)
    job.join(1, 2)
    job.rank_ended(1, 75)
    assert job.events("node_failed")[0]["message"] == "member 1 (node 1) exited with code 75 before it was admitted"
    job.node_exited(1, 75)
    job.tick(10)
    assert [one.node for one in job.started] == [1, 2, 3]
    job.warm(2, 3)
    job.rank_ended(2, 75)
    assert job.told(Abandon) == [3]
    job.node_exited(2, 75)
    job.tick(10)
    assert [one.node for one in job.started] == [1, 2, 3, 4] and job.finish is None


def test_a_node_that_dies_while_it_starts_is_replaced() -> None:
    job = Job(target=1)
    job.node_exited(1, -signal.SIGKILL)
    assert job.events("node_failed")[0]["node"] == 1
    job.tick(0.5)
    assert len(job.started) == 1, "not at once"
    job.tick(1.0)
    assert job.started[-1] == StartNode(2, 2, 1)


def test_three_failures_in_a_row_end_a_job_that_never_began() -> None:
    job = Job(target=1)
    for node in (1, 2, 3):
        job.node_exited(node, -signal.SIGKILL)
        job.tick(10)
    assert len(job.started) == 3
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert job.finish.log_of == (3, 0)
    assert "3 nodes in a row failed to come up" in job.finish.message
    assert "SIGKILL" in job.finish.message


def test_nodes_that_the_cluster_took_are_no_failures_however_many() -> None:
    job = Job(target=1)
    for node in range(1, 8):
        job.feed(NodeExited(job.now, node, None, (), why="StartError: nvml error", taken=True))
        job.tick(60)
    assert (job.finish, job.started[-1]) == (None, StartNode(8, 8, 1))


def test_the_last_words_of_a_node_that_could_not_send_its_log_are_told() -> None:
    job = Job(target=1)
    job.feed(NodeExited(job.now, 1, 1, last_line="ImportError: no torch"))
    assert [told["message"] for told in job.events("warning")] == ["node 1: ImportError: no torch"]


def test_the_last_words_of_a_node_are_not_told_where_its_ranks_or_the_engine_say_more() -> None:
    job = Job(target=3)
    job.feed(NodeExited(job.now, 1, 1, ((0, Exit(1)),), last_line="leaves with 1"))
    job.feed(NodeExited(job.now, 2, None, why="OOMKilled: out of memory", last_line="loads"))
    job.warm(3)
    job.feed(NodeExited(job.now, 3, 1, last_line="leaves with 1"))
    assert [told["message"] for told in job.events("warning")] == ["node 2: OOMKilled: out of memory"]


def test_a_node_that_the_engine_can_not_start_counts_as_failed() -> None:
    job = Job(target=1)
    for node in (1, 2, 3):
        job.feed(NodeNotStarted(job.now, node, "no GPUs left"))
        job.tick(10)
    assert job.finish is not None
    assert "no GPUs left" in job.finish.message
    assert job.killed == [], "there is nothing to kill"


def test_a_node_that_is_not_warm_in_time_has_failed() -> None:
    job = Job(target=1, start_timeout=600)
    job.join(1)
    job.tick(599)
    assert job.killed == []
    job.tick(2)
    assert job.killed == [1]
    assert job.events("node_failed") == [{"node": 1, "message": "node 1 was not ready to train 600 s after its start"}]


def test_a_failed_node_counts_until_it_is_gone() -> None:
    job = Job(target=1, start_timeout=60)
    job.tick(61)
    job.tick(30)
    assert len(job.started) == 1
    job.node_exited(1, -9)
    assert len(job.started) == 2


def test_the_first_formation_is_tried_three_times() -> None:
    job = Job(minimum=2, target=2)
    job.warm(1, 2)
    for number in (1, 2, 3):
        job.report(1, FormFailed(number, "Connection refused"))
        assert job.orders(Abandon)[-1] == Abandon(number)
        job.tick(2)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "Connection refused" in job.finish.message
    assert len(job.orders(Form)) == 3


def test_a_group_in_which_a_step_was_completed_is_not_given_up_for_a_member_that_had_none() -> None:
    job = Job(minimum=1, nproc=2, target=1)
    job.warm(1)
    job.report(1, Active(1, 0, 1))
    job.report(1, Done(8))
    job.report(2, FormFailed(1, "time-out"))
    assert not job.orders(Abandon)
    job.complete(8)
    for member in (1, 2):
        job.report(member, Done(8))
        job.report(member, Ended(8, True))
        job.rank_ended(member, 0)
    job.node_exited(1, 0)
    assert job.finish is not None and job.finish.exit_code == ExitCode.DONE


def test_a_death_while_the_first_group_forms_costs_that_node_only() -> None:
    job = Job(minimum=2, target=3)
    job.warm(1, 2)
    job.rank_ended(2, signal=signal.SIGKILL)
    assert job.orders(Abandon) == [Abandon(1)]
    assert job.killed == [2]
    job.warm(3)
    job.tick(2)
    assert job.form.members == (1, 3)


def test_a_death_beside_the_first_group_is_no_loss() -> None:
    job = Job(minimum=2, target=3)
    job.warm(1, 2)
    job.report_all((1, 2), Formed(1))
    job.rank_ended(3, signal=signal.SIGKILL)
    job.tick(2)
    assert job.finish is None
    assert job.killed == [3]


def test_a_group_that_does_not_form_in_time_is_abandoned() -> None:
    job = Job(minimum=2, target=2, form_timeout=10)
    job.warm(1, 2)
    job.report(1, Formed(1))
    job.tick(14)
    assert job.orders(Abandon) == []
    job.tick(2)
    assert job.orders(Abandon) == [Abandon(1)]
    assert job.killed == [2], "the one that did not"


def test_a_script_that_ends_without_training_is_done() -> None:
    job = Job(target=2)
    job.rank_ended(1, 0)
    assert job.finish is None
    job.node_exited(2, 0)
    assert job.finish is not None
    assert job.finish.exit_code == 0
    assert job.events("warning") == [{"message": "the script ended without a training step"}]
    assert len(job.started) == 2, "nothing is started in its place"


@pytest.mark.parametrize("warm_first", [True, False])
def test_a_script_that_ends_on_so_many_nodes_that_the_rest_waits_for_ever(warm_first: bool) -> None:
    job = Job(minimum=2, target=2)
    if warm_first:
        job.warm(1)
    job.rank_ended(2, 0)
    if not warm_first:
        assert job.finish is None
        job.warm(1)
    assert job.finish is not None
    assert job.finish.exit_code == 1
    assert "the script of member 2 (node 2) ended before its first training step" in job.finish.message


def test_no_quota_before_training_is_76() -> None:
    job = Job(minimum=2, target=2)
    job.target(0, message="the hint allows 1 GPU, the job needs 2")
    assert job.finish is not None
    assert job.finish.exit_code == 76
    assert (
        job.finish.message == "the hint allows 1 GPU, the job needs 2; stopped before training began; nothing was saved"
    )


def test_no_quota_before_anything_was_started() -> None:
    job = Job(minimum=2)
    job.target(0, message="the hint allows 1 GPU, the job needs 2")
    assert job.finish is not None
    assert (job.finish.exit_code, job.started) == (76, [])
    assert job.finish.message == "the hint allows 1 GPU, the job needs 2; nothing was started"


def test_a_notice_before_training_has_another_node_started_where_there_is_no_other() -> None:
    job = Job(minimum=1, target=1)
    job.notice(1)
    assert job.killed == [1] and job.finish is None
    job.node_exited(1, -15)
    assert [one.node for one in job.started] == [1, 2]


def test_a_notice_before_training_costs_that_node_only_where_others_are_enough() -> None:
    job = Job(minimum=1, target=2)
    job.notice(1)
    job.warm(2)
    assert job.killed == [1]
    assert job.form.members == (2,)
    assert len(job.started) == 2


def test_a_lower_target_ends_nodes_that_are_not_admitted_at_once() -> None:
    job = Job(minimum=1, target=3)
    job.join(3)
    job.target(1)
    assert sorted(job.killed) == [2, 3]
    assert job.told(End) == [3], "it has joined; node 2 has not"
    assert {one["node"]: one["cause"] for one in job.events("node_left")} == {2: "hint", 3: "hint"}


def test_a_member_of_an_unwanted_node_that_still_joins_is_told_to_leave() -> None:
    job = Job(minimum=1, target=2)
    job.target(1)
    job.feed(MemberJoined(job.now, 2, 4711))
    assert job.told(End) == [2]


def test_numbers_are_never_used_again() -> None:
    job = Job(minimum=1, nproc=2, target=2)
    job.target(1)
    job.node_exited(2, -9)
    job.target(2)
    assert job.started[-1] == StartNode(3, 5, 2)


def test_another_version_is_warned_of() -> None:
    job = Job(target=1)
    job.feed(MemberJoined(job.now, 1, 4711, "0.0.9"))
    assert "runs elastic-launcher 0.0.9" in job.events("warning")[0]["message"]


def test_silence_is_said_and_no_more() -> None:
    job = Job(target=1)
    job.join(1)
    job.feed(MemberSilent(job.now, 1, 15.2))
    assert job.events("warning") == [{"message": "nothing was heard from member 1 (node 1) for 15 s"}]
    assert job.finish is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_interrupts_end_the_job_once(number: int, code: int) -> None:
    job = Job(target=1)
    for _ in range(3):
        job.feed(Interrupted(job.now, number))
    assert job.finish is not None
    assert job.finish.exit_code == code
    assert "before training began; nothing was saved" in job.finish.message


def test_nothing_is_done_after_the_end() -> None:
    job = Job(target=2)
    job.feed(Interrupted(job.now, signal.SIGTERM))
    job.look()
    job.warm(1, 2)
    job.tick(1000)
    assert job.look() == []
    assert job.state.nodes[1].phase is Phase.STARTING


@pytest.mark.parametrize("code", [1, 2, 70, None, -9])
def test_a_nodes_exit_code_is_never_taken_for_its_scripts(code: int | None) -> None:
    """An agent that is killed or fails, a torchrun that does, a container that ends with 137: the node is replaced."""
    job = Job(minimum=1, target=1)
    for node in (1, 2):
        job.join(node)
        job.feed(NodeExited(job.now, node, code))
        assert job.finish is None and job.events("node_failed")[-1]["node"] == node
        job.tick(2.1)
    job.feed(NodeExited(job.now, 3, code))
    assert job.finish is not None
    assert "3 nodes in a row failed to come up, the last: member 3 (node 3)" in job.finish.message
    assert "the script" not in job.finish.message


def test_a_scripts_own_exit_code_ends_a_job_that_never_began() -> None:
    job = Job(minimum=1, target=1)
    job.join(1)
    job.feed(NodeExited(job.now, 1, 1, ((0, Exit(3)),)))
    job.tick(1.1)
    assert job.finish is not None
    assert "the script of member 1 (node 1) exited with code 3 before training began" in job.finish.message
