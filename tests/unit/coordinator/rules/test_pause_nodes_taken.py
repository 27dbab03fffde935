"""A job whose nodes are taken although its quota allows them is saved, asks for others, and goes on from there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_launcher.checkpoint.changes import OF_SCRIPT
from elastic_launcher.config import JobConfig
from elastic_launcher.control.messages import Failed, Halted, Progress, Save, Saved
from elastic_launcher.coordinator.api.live_status import phase
from elastic_launcher.coordinator.model.actions import Emit, FindResumePoint
from elastic_launcher.coordinator.model.ending import Restart
from elastic_launcher.coordinator.model.observations import (
    Interrupted,
    NodeExited,
    NodeNoticed,
    NodeRegistered,
    NodeStands,
    NoticeExpires,
    ResumePointFound,
)
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.coordinator.model.restart_budget import RestartBudget, Taken
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.coordinator.resume.resume_search import used_up
from elastic_launcher.coordinator.rules.checkpoint_restart import await_nodes, state_after
from elastic_launcher.workdir import Past
from tests.support.checkpoints import JOB, manifest
from tests.support.played_job import Job, lose, training

WAIT = 1800.0
SAME = {name: getattr(JOB, name) for name in OF_SCRIPT}
PLACES = [False, True]


def taken(nodes: int = 1, minimum: int = 1, *noticed: int, **rules: object) -> Job:
    """Returns a job of which so many nodes are told to go that it is being saved."""
    job = training(nodes, minimum, **{"node_timeout": WAIT, **rules})
    for node in noticed or range(1, nodes + 1):
        job.feed(NodeNoticed(job.now, node, "signal"))
    job.tick(0.3)
    return job


def save(job: Job, step: int = 11) -> None:
    job.report(job.state.survivors()[0], Saved(step, f"job/checkpoints/step-{step:08}", 100, 0.01, 0.1))
    job.report(job.state.survivors()[0], Halted(step))


def end_nodes(job: Job) -> None:
    for node in job.state.nodes.values():
        if node.phase in (Phase.ADMITTED, Phase.LEAVING, Phase.ENDING):
            job.node_exited(node.number, -9)


def begin_again(job: Job, step: int = 11, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Has what is saved found, as the coordinator does; something may happen while it looks for that."""
    assert any(isinstance(action, FindResumePoint) for action in job.look())
    rules = job.state.rules
    origin = Origin(used_up(job.state, Past()), Path(f"job/checkpoints/step-{step:08}"), manifest(step))
    config = JobConfig(
        script="train.py",
        min_nodes=rules.min_nodes,
        max_nodes=4,
        node_timeout=rules.node_timeout,
        wait_for_quota=rules.wait_for_quota,
    )
    meanwhile()
    job.feed(ResumePointFound(job.now, origin.first_state(config, rules.store)))


def waiting(nodes: int = 1, minimum: int = 1, *noticed: int, **rules: object) -> Job:
    """Returns a job that waits for nodes, saved at step 11."""
    job = taken(nodes, minimum, *noticed, **rules)
    save(job)
    end_nodes(job)
    begin_again(job)
    return job


@pytest.mark.parametrize("places", PLACES, ids=["local", "cluster"])
@pytest.mark.parametrize(("nodes", "noticed"), [(1, (1,)), (2, (1,)), (2, (2,)), (2, (1, 2))])
def test_it_is_saved_then_others_are_asked_for_at_once_and_it_goes_on(
    nodes: int, noticed: tuple[int, ...], places: bool
) -> None:
    job = taken(nodes, nodes, *noticed, replaces_noticed=places)
    assert job.told(Save) == [*range(1, nodes + 1)] and job.orders(Save)[0].halt
    assert phase(job.state) == "waiting for nodes"
    assert len(job.events("nodes_taken")) == 1 and not job.events("quota_lost")
    save(job)
    assert job.killed == [*range(1, nodes + 1)], "what is left is given back, too"
    end_nodes(job)
    begin_again(job)
    assert [one.node for one in job.started[nodes:]] == [*range(nodes + 1, 2 * nodes + 1)]
    (told,) = job.events("nodes_wait")
    assert told["step"] == 11 and told["message"].startswith("waiting for nodes, up to 1800 s (--node-timeout): node ")
    assert phase(job.state) == "waiting for nodes"
    job.tick(100.0)
    job.warm(*range(nodes + 1, 2 * nodes + 1), fingerprint=SAME)
    job.complete(11)
    assert phase(job.state) == "training" and job.state.pause is None
    assert (job.state.generation_number, job.state.step) == (2, 12)
    assert not job.events("quota_back")
    job.train_to_the_end(40)
    assert job.finish is not None and job.finish.exit_code == 0


def test_no_room_for_a_while_ends_nothing() -> None:
    job = waiting(pending_timeout=60.0)
    job.feed(NodeStands(job.now, 2, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"))
    job.tick(WAIT - 1)
    assert job.finish is None and len(job.started) == 2, "--pending-timeout is not what counts here"


def test_numbers_that_a_node_got_while_what_is_saved_was_looked_for_are_not_given_again() -> None:
    job = training(1, 1, node_timeout=WAIT, replaces_noticed=True)
    job.target(2)
    job.feed(NodeRegistered(job.now, 2, "a"))
    job.feed(NodeNoticed(job.now, 1, "spot"))
    job.tick(0.3)
    save(job)
    end_nodes(job)

    def requeue() -> None:
        job.feed(NodeExited(job.now, 2, None, (), why="its pod was deleted", taken=True, again="queued", pod="a"))
        assert job.state.nodes[2].members == (3,)
        job.feed(NodeExited(job.now, 2, None, (), why="its Job was deleted", taken=True))

    begin_again(job, meanwhile=requeue)
    assert [(one.node, one.first_member) for one in job.started[2:]] == [(3, 4), (4, 5)]


@pytest.mark.parametrize("how", ["waits", "restarted", "resumes"])
def test_nodes_that_fail_while_it_goes_on_are_tried_again_by_another_launch(how: str) -> None:
    """A step that ends with 1 is not tried again by a pipeline, and this job's script has shown that it trains."""
    job = waiting()
    if how != "waits":
        job.state = replace(job.state, pause=None)
    if how == "resumes":
        job.state = replace(job.state, restart=None)
    for node in (2, 3, 4):
        job.node_exited(node, -signal.SIGKILL)
        job.tick(10)
    assert job.finish is not None and job.finish.exit_code == 75
    assert "3 nodes in a row failed to come up" in job.finish.message
    assert "; the training could not go on" in job.finish.message


def test_after_the_time_it_ends_with_75_and_says_what_is_saved() -> None:
    job = waiting()
    job.feed(NodeStands(job.now, 2, "0/2 nodes are available"))
    job.tick(WAIT)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith(
        "too few nodes within the 1800 s of --node-timeout: node 1 must leave (notice) and 0 of at least 1 nodes "
        "would stay; step 11 is saved in "
    )


def test_nodes_that_have_their_places_when_the_time_is_over_are_still_used() -> None:
    job = waiting(node_timeout=60.0)
    job.join(2)
    job.tick(61.0)
    assert job.finish is None
    job.warm(2, fingerprint=SAME)
    job.complete(11)
    assert phase(job.state) == "training"


def test_without_time_it_ends_at_once() -> None:
    job = training(1)
    job.notice(1)
    save(job)
    assert job.finish is not None and job.finish.exit_code == 75


def test_it_can_happen_again_and_again() -> None:
    job = waiting()
    for node in (2, 3, 4):
        job.warm(node, fingerprint=SAME)
        job.complete(9 + node)
        job.notice(node)
        save(job, 10 + node)
        end_nodes(job)
        begin_again(job, 10 + node)
    assert [one.node for one in job.started] == [1, 2, 3, 4, 5]
    assert job.finish is None


def test_a_node_that_is_taken_while_it_comes_up_is_replaced_too() -> None:
    job = waiting()
    job.feed(NodeNoticed(job.now, 2, "signal"))
    job.node_exited(2, -15)
    assert [one.node for one in job.started] == [1, 2, 3]
    assert phase(job.state) == "waiting for nodes"


def test_a_joiner_that_is_ready_in_time_takes_the_place_without_a_save() -> None:
    job = training(2, 2, node_timeout=WAIT)
    job.target(3)
    job.join(3)
    job.notice(1)
    assert job.told(Save) == [] and job.state.pause is None
    job.warm(3)
    assert job.form.joiners == (3,)
    job.complete(10)
    assert job.form.leavers == (1,)


def test_a_joiner_that_is_not_ready_in_time_is_not_waited_for() -> None:
    job = training(2, 2, node_timeout=WAIT)
    job.target(3)
    job.join(3)
    job.notice(1)
    job.feed(NoticeExpires(job.now, (1,)))
    assert job.told(Save) == [1, 2]


def test_a_joiner_that_has_not_come_up_yet_begins_with_what_is_saved() -> None:
    job = training(2, 2, node_timeout=WAIT)
    job.target(3)
    job.notice(1)
    save(job)
    assert job.killed == [1, 2]
    end_nodes(job)
    begin_again(job)
    assert [(one.node, one.first_member) for one in job.started[2:]] == [(3, 3), (4, 4)]
    job.feed(NodeNoticed(job.now, 3, "signal"))
    job.node_exited(3, -15)
    assert [(one.node, one.first_member) for one in job.started[4:]] == [(5, 5)]
    job.warm(4, 5, fingerprint=SAME)
    assert job.form.members == (4, 5)


def test_a_joiner_that_asked_too_early_what_to_begin_with_is_restarted() -> None:
    job = training(2, 2, node_timeout=WAIT)
    job.target(3)
    job.notice(1)
    job.join(3)
    save(job)
    end_nodes(job)
    begin_again(job)
    assert job.killed == [1, 2, 3]
    assert job.form.generation == 1


def test_quota_that_goes_while_it_waits_ends_what_comes_up() -> None:
    job = waiting(wait_for_quota=600.0)
    job.target(0, message="the hint allows 0 GPUs")
    assert job.killed == [1, 2] and phase(job.state) == "waiting for quota"
    end_nodes(job)
    begin_again(job)
    assert len(job.started) == 2
    job.target(1)
    assert [one.node for one in job.started] == [1, 2, 3] and phase(job.state) == "waiting for nodes"
    assert len(job.events("quota_back")) == 1


def test_the_number_of_a_generation_that_was_ordered_is_not_used_again() -> None:
    """Else the checkpoints that a node which is cut off writes in it would not be shut out."""
    job = training(2, 2, node_timeout=WAIT)
    assert used_up(job.state, Past()).generations == 1
    job.target(3)
    job.join(3)
    job.warm(3)
    ordered = job.form.generation
    assert ordered == 2 and used_up(job.state, Past()).generations == ordered
    job.complete(10)
    assert used_up(job.state, Past()).generations == ordered


def test_that_it_waits_for_nodes_once_quota_is_back_is_told_as_any_such_wait() -> None:
    """Else the report and what a launcher that takes over reads say that it comes up."""
    job = waiting(wait_for_quota=600.0)
    job.target(0, message="the hint allows 0 GPUs")
    end_nodes(job)
    begin_again(job)
    job.look()
    job.target(1)
    told = [one.kind for one in job.look() if isinstance(one, Emit)]
    assert told == ["quota_back", "nodes_wait", "node_started"]
    wait = job.events("nodes_wait")[-1]
    assert wait["step"] == 11
    assert wait["message"] == "waiting for nodes, up to 1800 s (--node-timeout): quota is there again"


def test_quota_that_goes_while_it_waits_ends_a_job_that_does_not_wait_for_it() -> None:
    job = waiting()
    job.target(0, message="the hint allows 0 GPUs")
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith("the hint allows 0 GPUs; stopped while it waited for nodes; step 11 is saved")


def test_nodes_that_do_not_come_once_quota_is_back_end_it_after_the_time() -> None:
    job = waiting(wait_for_quota=600.0)
    job.target(0, message="the hint allows 0 GPUs")
    end_nodes(job)
    begin_again(job)
    job.target(1)
    job.feed(NodeStands(job.now, 3, "0/2 nodes are available"))
    job.tick(WAIT)
    assert job.finish is not None and job.finish.exit_code == 75


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_whoever_stops_it_while_it_waits_need_not_wait(number: int, code: int) -> None:
    job = waiting()
    job.feed(Interrupted(job.now, number))
    assert job.finish is not None and job.finish.exit_code == code
    assert " while it waited for nodes; step 11 is saved in " in job.finish.message


def test_the_loss_of_those_that_save_has_it_go_on_from_what_was_saved_before() -> None:
    job = taken(2, 2, 1)
    for member in (1, 2):
        lose(job, member)
    end_nodes(job)
    begin_again(job, 4)
    assert job.finish is None and job.state.step == 4 and len(job.started) == 4


def test_a_script_that_fails_while_it_is_saved_ends_the_job() -> None:
    job = taken(2, 2, 1)
    job.report(1, Failed("ValueError: boom"))
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 1


def test_above_the_minimum_the_place_of_a_node_whose_machine_goes_is_taken_at_once() -> None:
    job = training(3, 1, replaces_noticed=True)
    job.notice(2)
    job.complete(10)
    assert len(job.started) == 3
    job.node_exited(2)
    assert [one.node for one in job.started] == [1, 2, 3, 4]
    assert job.state.target is not None and job.state.target.nodes == 3
    job.target(4)
    assert [job.state.nodes[node].cause for node in (4, 5)] == ["notice", "hint"], "no hint asked for the first"


def test_a_node_whose_machine_goes_is_not_replaced_where_the_hint_takes_its_place() -> None:
    job = training(3, 1, replaces_noticed=True)
    job.notice(2)
    job.target(2)
    job.complete(10)
    job.node_exited(2)
    assert len(job.started) == 3
    job.target(3)
    assert job.state.nodes[4].cause == "hint"


def test_nodes_that_the_cluster_takes_again_and_again_are_no_fault_of_the_job() -> None:
    job = training(1)
    job.state = replace(job.state, restart_budget=RestartBudget(10, 2))
    job.feed(NodeExited(job.now, 1, None, taken=True))
    assert job.state.restart_budget == RestartBudget()


def take(job: Job, node: int, how: str) -> None:
    """Has a node taken before it trains: its pod is evicted, with notice, or without a word."""
    if how == "notice":
        job.feed(NodeNoticed(job.now, node, "eviction"))
    job.feed(NodeExited(job.now, node, None, taken=True))


@pytest.mark.parametrize("how", ["notice", "exit"])
def test_nodes_that_are_taken_again_and_again_before_a_step_are_asked_for_later_and_later(how: str) -> None:
    job = waiting(replaces_noticed=True)
    waits, node = list[float](), 2
    while len(waits) < 9:
        take(job, node, how)
        since, node = job.now, node + 1
        while node not in job.state.nodes:
            job.tick(0.25)
        waits.append(job.now - since)
    first = [0.0] if how == "notice" else [1.0]  # without a word, it might as well have failed
    assert waits == pytest.approx([*first, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0], abs=0.3)
    told = [event["message"] for event in job.events("warning")]
    assert told[0].startswith(
        "nodes were taken 2 times in a row before a step was done, node 3 the last time: the next"
    )
    assert job.finish is None
    job.warm(node, fingerprint=SAME)
    job.complete(11)
    job.feed(NodeNoticed(job.now, node, "eviction"))
    job.tick(0.3)
    save(job, 12)
    end_nodes(job)
    begin_again(job, 12)
    assert job.started[-1].node == node + 1, "a step was done"
    take(job, node + 1, "notice")
    assert job.started[-1].node == node + 2


def test_nodes_that_are_taken_together_count_once() -> None:
    job = waiting(3, 3, replaces_noticed=True)
    job.tick(1.0)
    for node in (4, 5, 6):
        take(job, node, "notice")
    assert [one.node for one in job.started[6:]] == [7, 8, 9]
    job.tick(1.0)
    for node in (7, 8, 9):
        take(job, node, "notice")
    assert len(job.started) == 9
    job.tick(1.0)
    assert len(job.started) == 12 and len(job.events("warning")) == 1


def test_nodes_that_are_taken_while_others_train_on_are_replaced_at_once_each_time() -> None:
    job = training(1, replaces_noticed=True)
    job.target(2)
    for node in range(2, 12):
        job.tick(5.0)
        job.report(1, Progress(10 + node, 0))
        take(job, node, "notice")
        assert job.started[-1].node == node + 1


def test_a_job_that_falls_back_to_a_checkpoint_has_got_no_further_by_that() -> None:
    known = Taken(step=20, times=3, at=5.0)
    state = replace(State(training(1).state.rules), taken=known, start_not_before=9.0)
    carried = state.carried_to(State(state.rules, step=12))
    assert (carried.taken, carried.start_not_before) == (replace(known, step=12), 9.0)
    assert carried.taken.once_more(12, 6.0, 7.0).times == 4
    assert carried.taken.once_more(13, 6.0, 7.0).times == 1


EARLIER = EarlierWait("node 1 must leave (notice) and 0 of at least 1 nodes would stay", 600.0, "notice")


def started_again(nodes: int = 1, waits: EarlierWait = EARLIER, **rules: object) -> Job:
    """Returns a job without nodes whose launcher was started again while it waited for them, and knows its target."""
    origin = Origin(Past(), Path("job/checkpoints/step-00000011"), manifest(11), waits=waits)
    config = JobConfig(script="train.py", min_nodes=1, max_nodes=4, **{"node_timeout": WAIT, **rules})
    job = Job()
    job.state = origin.first_state(config, "host:1")
    job.target(nodes, "start", "the hint allows 0 GPUs")
    return job


def test_a_launcher_that_starts_again_waits_for_the_rest_of_the_time() -> None:
    job = started_again()
    assert phase(job.state) == "waiting for nodes" and len(job.started) == 1
    (told,) = job.events("nodes_wait")
    assert told == {
        "message": f"waiting for nodes, up to 1200 s (--node-timeout): {EARLIER.message}",
        "reason": EARLIER.message,
        "step": 11,
        "cause": "notice",
        "waited": 600.0,
    }
    job.feed(NodeStands(job.now, 1, "0/2 nodes are available"))
    job.tick(1199.0)
    assert job.finish is None
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith("too few nodes within the 1800 s of --node-timeout: node 1 must leave")


@pytest.mark.parametrize(
    ("start_timeout", "node_timeout", "least"), [(600.0, WAIT, 600.0), (90.0, WAIT, 90.0), (600.0, 60.0, 60.0)]
)
def test_a_launcher_that_starts_again_after_all_of_the_time_gives_nodes_the_time_to_come_up(
    start_timeout: float, node_timeout: float, least: float
) -> None:
    used_up = replace(EARLIER, seconds=5000.0)
    job = started_again(waits=used_up, start_timeout=start_timeout, node_timeout=node_timeout)
    assert job.finish is None and len(job.started) == 1
    (told,) = job.events("nodes_wait")
    assert told["message"].startswith(f"waiting for nodes, up to {least:g} s (--node-timeout): ")
    job.feed(NodeStands(job.now, 1, "0/2 nodes are available"))
    job.tick(least - 1.0)
    assert job.finish is None
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_the_time_without_a_launcher_is_no_wait_and_the_training_stood_still_for_it() -> None:
    job = started_again(waits=replace(EARLIER, away=7200.0))
    (told,) = job.events("nodes_wait")
    assert told["waited"] == 600.0 and "up to 1200 s" in told["message"]
    assert job.state.restart == Restart("notice", job.now - 7800.0)


def test_a_wait_that_an_earlier_launcher_had_just_begun_is_told_as_one_that_goes_on() -> None:
    (told,) = started_again(waits=replace(EARLIER, seconds=0.0)).events("nodes_wait")
    assert told["waited"] == 0.0


def test_a_launcher_that_starts_again_waits_no_longer_than_nodes_take_to_come() -> None:
    job = started_again()
    job.tick(5.0)
    job.warm(1, fingerprint=SAME)
    job.complete(11)
    assert job.state.pause is None and phase(job.state) == "training"


def test_a_launcher_that_starts_again_and_is_not_to_wait_begins_as_any() -> None:
    job = started_again(node_timeout=0.0)
    assert phase(job.state) == "starting" and not job.events("nodes_wait")


def test_a_launcher_that_starts_again_without_quota_was_stopped_after_training_began() -> None:
    job = started_again(0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_a_job_that_restarts_waits_for_its_nodes_for_a_limited_time() -> None:
    job = training(1, node_timeout=WAIT)
    first = state_after(
        replace(job.state, restart=Restart("failure", job.now)), replace(State(job.state.rules), step=4)
    )
    state, actions = await_nodes(first, job.now)
    assert [action.kind for action in actions if isinstance(action, Emit)] == ["nodes_wait"]
    assert phase(state) == "waiting for nodes"
