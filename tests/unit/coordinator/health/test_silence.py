"""A member of which nothing is heard is given up: soon while others wait for it, later where nobody does."""

from __future__ import annotations

import pytest

from elastic_launcher.control.messages import Done, Ended
from elastic_launcher.coordinator.health.silence import Silence
from elastic_launcher.coordinator.model.observations import MemberSilent, NodeExited, NodeSilent, NodeStands
from tests.support.played_job import Job, training

LONGEST = 60.0


def silence_of(job: Job, frozen: int, waits: float, seconds: int, together: bool = False) -> list[MemberSilent]:
    """Returns what is observed while one member says nothing, and the others that they wait."""
    silence = Silence(10.0, LONGEST, 0.0)
    for number in job.state.group:
        silence.hear(number, 0.0)
    found = []
    for tick in range(1, 2 * seconds + 1):
        now = tick / 2
        for number in job.state.group:
            if number != frozen and not together:
                silence.hear(number, now, min(waits, now))
        found += silence.look(job.state, now)
    return found


def test_one_that_others_wait_for_is_given_up() -> None:
    job = training(3)
    found = silence_of(job, 2, waits=60.0, seconds=11)
    assert {(one.member, one.given_up) for one in found} == {(2, True)}
    job.feed(found[0])
    assert job.killed == [2]
    assert "gave no sign of life for 10 s while others waited for it" in job.events("node_lost")[0]["message"]
    job.break_step((1, 3), 1, 10)
    assert job.form.members == (1, 3)


@pytest.mark.parametrize(("waits", "together"), [(0.0, False), (2.0, False), (60.0, True)])
def test_one_that_nobody_waits_for_is_only_spoken_of(waits: float, together: bool) -> None:
    """The others train on, or are as silent: who is busy with a compile answers to nobody either."""
    found = silence_of(training(3), 2, waits, seconds=20, together=together)
    assert found and not any(one.given_up for one in found)


@pytest.mark.parametrize(("nodes", "waits"), [(1, 0.0), (2, 0.0)])
def test_one_that_nobody_waits_for_is_given_up_later(nodes: int, waits: float) -> None:
    job = training(nodes)
    found = silence_of(job, 1, waits, seconds=61)
    assert not any(one.given_up for one in found if one.seconds <= LONGEST)
    given_up = next(one for one in found if one.given_up)
    assert (given_up.member, given_up.waited_for) == (1, False)
    job.feed(given_up)
    (lost,) = job.events("node_lost")
    assert "gave no sign of life for 60 s (--silence-timeout) after step 10" in lost["message"]
    job.tick(1.1)
    assert (job.finish is not None and job.finish.curable) == (nodes == 1)  # then nobody holds the state


@pytest.mark.parametrize(("load", "lost"), [(1.0, False), (0.06, False), (0.01, True), (0.0, True)])
def test_the_agents_word_that_the_process_computes_counts(load: float, lost: bool) -> None:
    job, silence = training(1), Silence(10.0, LONGEST, 0.0)
    silence.hear(1, 0.0)
    found = []
    for now in (tick / 2 for tick in range(1, 400)):
        if now % 2 == 0:
            silence.hear_node(1, now)
            if 1 in silence.doubtful(job.state, 1, now):
                silence.vouch(1, 7.0 + load * now, now)
        found += silence.look(job.state, now)
    assert any(one.given_up for one in found) == lost
    assert sum(not one.given_up for one in found) == 1, "it is spoken of once"


def test_one_that_computed_and_then_froze_is_lost() -> None:
    job, silence = training(1), Silence(10.0, LONGEST, 0.0)
    silence.hear(1, 0.0)
    found = []
    for now in (tick / 2 for tick in range(1, 400)):
        if now % 2 == 0:
            silence.vouch(1, min(now, 100.0), now)
        found += [one for one in silence.look(job.state, now) if one.given_up]
    assert found[0].now == pytest.approx(100.0 + LONGEST, abs=1.0)


def test_one_that_is_heard_of_again_is_spoken_of_again() -> None:
    job, silence = training(1), Silence(10.0, LONGEST, 0.0)
    silence.hear(1, 0.0)
    told = [job.feed(one) for now in range(1, 30) for one in silence.look(job.state, float(now))]
    silence.hear(1, 30.0)
    told += [job.feed(one) for one in silence.look(job.state, 30.0)]
    assert len(told) == 2
    common = {"member": 1, "rank": 0, "node": 1}
    assert job.events("silent") == [{**common, "over": False}, {**common, "over": True}]


def test_a_rank_that_is_frozen_in_the_code_after_the_loop_has_all_do_it_again() -> None:
    job = training(2)
    job.report_all((1, 2), Done(400))
    job.report(1, Ended(400, True))
    job.rank_ended(1, 0)
    job.node_exited(1)
    job.feed(MemberSilent(job.now, 2, 61.0, given_up=True, waited_for=False))
    assert job.killed == [2]
    assert job.finish is not None and job.finish.curable
    assert "may be missing" in job.finish.message


def test_a_process_that_does_not_end_after_its_script_has_keeps_no_job() -> None:
    job = training(1)
    job.report(1, Done(400))
    job.report(1, Ended(400, True))
    job.feed(MemberSilent(job.now, 1, 61.0, given_up=True, waited_for=False))
    assert job.killed == [1]
    job.node_exited(1, -9)
    assert job.finish is not None and job.finish.exit_code == 0


def test_a_process_that_does_not_end_is_not_killed_while_a_rank_on_its_node_still_writes() -> None:
    job = training(1, nproc=2)
    job.report_all((1, 2), Done(400))
    job.report(2, Ended(400, True))
    silent = MemberSilent(job.now, 2, 61.0, given_up=True, waited_for=False)
    job.feed(silent)
    job.feed(silent)
    assert job.killed == [] and job.finish is None
    (warning,) = job.events("warning")
    assert "it is killed once the script of member 1 (rank 0, node 1) has ended, too" in warning["message"]
    job.report(1, Ended(400, True))
    job.feed(silent)
    assert job.killed == [1]
    job.rank_ended(1, signal=9)
    job.rank_ended(2, signal=9)
    job.node_exited(1, -9)
    assert job.finish is not None and job.finish.exit_code == 0


def test_a_joiner_that_is_silent_is_given_up_and_replaced() -> None:
    job = training(1)
    job.target(2)
    job.join(2)
    job.feed(MemberSilent(job.now, 2, 61.0, given_up=True, waited_for=False))
    assert job.killed == [2]
    assert "gave no sign of life for 61 s" in job.events("node_failed")[0]["message"]


@pytest.mark.parametrize("agent_lives", [True, False])
def test_a_rank_that_comes_up_is_given_up_with_its_agent_alone(agent_lives: bool) -> None:
    """It may read for long with the interpreter locked: `--start-timeout` is for that."""
    job, silence = Job(target=1), Silence(10.0, LONGEST, 0.0)
    job.join(1)
    silence.hear(1, 0.0)
    silence.hear_node(1, 0.0)
    found = []
    for now in range(1, 100):
        if agent_lives:
            silence.hear_node(1, float(now))
        found += [one for one in silence.look(job.state, float(now)) if one.given_up]
    assert bool(found) != agent_lives


def test_a_node_whose_agent_falls_silent_before_its_ranks_come_is_given_up() -> None:
    job, silence = Job(target=2), Silence(10.0, LONGEST, 0.0)
    job.join(2)
    silence.hear(2, 0.0)
    for node in (1, 2):
        silence.hear_node(node, 0.0)
    found: list[NodeSilent] = []
    for now in range(1, 62):
        silence.hear(2, float(now))
        assert silence.look(job.state, float(now)) == []
        found += silence.look_at_nodes(job.state, float(now))
    assert found == [NodeSilent(61.0, 1, 61.0)]
    job.feed(found[0])
    assert job.killed == [1]
    assert "nothing was heard from node 1 for 61 s (--silence-timeout)" in job.events("node_failed")[0]["message"]


def test_a_node_that_its_queue_took_back_is_not_given_up_for_what_its_agent_said_before() -> None:
    """It has no agent while it waits, and the one that comes with its admission has its full time."""
    job, silence = Job(target=1), Silence(10.0, LONGEST, 0.0)
    silence.hear_node(1, 0.0)
    job.feed(NodeExited(job.now, 1, None, taken=True, again="its Job is suspended by queue gpus"))
    found = [one for now in range(1, 200) for one in silence.look_at_nodes(job.state, float(now))]
    assert not found
    job.feed(NodeSilent(job.now, 1, 61.0))  # observed just before it waited
    assert job.killed == [] and not job.events("node_failed")
    job.feed(NodeStands(job.now, 1, ""))
    assert silence.look_at_nodes(job.state, 200.0) == []
    silence.hear_node(1, 200.0)
    assert [one.node for now in range(201, 262) for one in silence.look_at_nodes(job.state, float(now))] == [1]


def test_a_machine_that_slept_has_not_lost_anybody() -> None:
    job, silence = training(2), Silence(10.0, LONGEST, 0.0)
    silence.hear(1, 0.1, 6.0)
    silence.hear(2, 0.1)
    silence.look(job.state, 0.2)
    silence.hear(1, 3600.0, 3600.0)
    assert silence.look(job.state, 3600.0) == []
