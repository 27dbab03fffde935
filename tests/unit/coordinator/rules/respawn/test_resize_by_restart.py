"""A job whose script uses our library, and that changes its size by a new start."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from elastic_launcher.control.messages import GoOn, Halted, Save, Saved, SaveFailed
from elastic_launcher.coordinator.model.actions import Action, RestartAll, StartNode
from elastic_launcher.coordinator.model.observations import Interrupted, Observation, StopAsked
from elastic_launcher.coordinator.model.restart_budget import MOST_RESTARTS
from elastic_launcher.coordinator.model.state import Rules, State
from elastic_launcher.coordinator.resume.resume_search import used_up
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.rules.ending import COLLECT_SECONDS
from elastic_launcher.coordinator.rules.respawn.resize_by_restart import decide_restarts
from elastic_launcher.workdir import Past
from tests.support.played_job import Job, training


class Anew(Job):
    """Such a job, played by hand."""

    def feed(self, observation: Observation) -> tuple[Action, ...]:
        self.state, actions = decide_restarts(self.state, observation)
        self.actions += actions
        return actions

    def restart(self) -> None:
        """Does what the coordinator does once all nodes have gone."""
        assert [one for one in self.actions if isinstance(one, RestartAll)] and self.state.finished
        old, self.actions = self.state, []
        past = used_up(old, Past())
        numbers = {
            "first_node": past.first_node,
            "first_member": past.first_member,
            "generations_before": past.generations,
        }
        self.state = state_after(old, State(Rules(old.rules.min_nodes, 1, old.rules.store, **numbers)))
        assert old.target is not None
        self.target(old.target.nodes)


def trains(nodes: int, minimum: int = 1) -> Anew:
    job = Anew(minimum)
    job.now, job.state = 100.0, training(nodes, minimum).state
    return job


def halt(job: Anew, step: int, seconds: float) -> None:
    job.report(1, Saved(step, "/c", 10, 0.1, seconds))
    for member in job.state.survivors():
        job.report(member, Halted(step))


def test_a_hint_has_the_job_save_stand_still_and_restart_with_new_numbers() -> None:
    job = trains(1)
    job.target(2)
    assert job.orders(Save) == [Save(halt=True)] and not job.started
    job.now += 5
    halt(job, 12, 2.0)
    assert [event["cause"] for event in job.events("node_left")] == ["hint"]
    job.restart()
    assert job.started == [StartNode(2, 2, 1), StartNode(3, 3, 1)]
    job.state = replace(job.state, rules=replace(job.state.rules, min_nodes=2))
    job.warm(2, 3)
    job.now += 4
    job.complete(12)
    formed = job.events("generation_formed")[0]
    assert (formed["cause"], formed["pause_seconds"]) == ("hint", 6.0), "saving and starting are the pause"
    assert job.state.generation_number == 2 and job.state.restart is None


def test_a_notice_restarts_without_that_node_and_below_the_minimum_ends_the_job() -> None:
    job = trains(2)
    job.notice(1)
    halt(job, 12, 0.0)
    job.restart()
    assert len(job.started) == 1
    job = trains(2, minimum=2)
    job.notice(1)
    halt(job, 12, 0.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_after_a_loss_the_others_do_the_step_again_and_save_before_the_job_restarts() -> None:
    job = trains(2)
    job.rank_ended(2, signal=signal.SIGKILL)
    assert not job.started and job.orders(Save) == [Save(halt=True)]
    job.break_step([1], 1, 12)
    job.complete(12)
    halt(job, 13, 0.0)
    job.restart()
    assert len(job.started) == 2


def cannot_save(job: Anew, step: int = 12) -> None:
    """The training stands still after a step, and the disk is full."""
    first, *others = job.state.survivors()
    for member in others:
        job.report(member, Halted(step, saved=False))
    job.report(first, SaveFailed(step, "No space left on device"))
    job.report(first, Halted(step, saved=False))


@pytest.mark.parametrize(("number", "code"), [(0, 75), (signal.SIGINT, 130)])
def test_a_job_that_is_stopped_while_it_is_saved_to_restart_ends_when_it_is_saved(number: int, code: int) -> None:
    job = trains(1)
    job.target(2)
    job.feed(Interrupted(job.now, number) if number else StopAsked(job.now, "stopped by `elastic-launcher stop`"))
    assert job.finish is None
    halt(job, 12, 0.0)
    assert [one for one in job.actions if isinstance(one, RestartAll)] == []
    assert job.finish is not None and job.finish.exit_code == code
    assert "step 12 is saved" in job.finish.message


def put_off(nodes: int = 1, wanted: int = 2) -> Anew:
    """Returns a job that was to change its size, could not be saved, and trains on."""
    job = trains(nodes)
    job.target(wanted)
    cannot_save(job)
    assert [one for one in job.actions if isinstance(one, RestartAll)] == [] and job.finish is None
    assert job.told(GoOn) == list(job.state.survivors())
    return job


@pytest.mark.parametrize(("nodes", "wanted"), [(1, 2), (2, 1)])
def test_a_job_that_can_not_be_saved_trains_on_and_restarts_after_the_next_checkpoint(nodes: int, wanted: int) -> None:
    job = put_off(nodes, wanted)
    assert (
        "before a checkpoint could be written: until then, the training goes on" in job.events("warning")[-1]["message"]
    )
    job.tick(1000.0)
    assert not job.started and not job.events("node_left") and job.state.formation is None
    assert len(job.orders(Save)) == 1
    job.report(1, Saved(40, "/c", 10, 0.1, 2.0))
    assert len(job.orders(Save)) == 2
    halt(job, 41, 2.0)
    job.restart()
    assert len(job.started) == wanted


def test_what_happens_meanwhile_waits_for_that_checkpoint_too() -> None:
    job = put_off(2, 3)
    job.target(4)
    job.rank_ended(2, signal=signal.SIGKILL)
    job.break_step([1], 1, 12)
    job.complete(12)
    job.node_exited(2, -9)
    job.tick(1000.0)
    assert not job.started and len(job.orders(Save)) == 1 and job.state.survivors() == (1,)
    job.report(1, Saved(40, "/c", 10, 0.1, 2.0))
    assert len(job.orders(Save)) == 2


def test_a_notice_meanwhile_is_no_reason_to_change_the_size_without_a_checkpoint() -> None:
    job = put_off(2, 3)
    job.notice(2)
    job.tick(20.0)
    assert len(job.orders(Save)) == 1 and job.state.formation is None and job.state.survivors() == (1, 2)
    job.report(1, Saved(40, "/c", 10, 0.1, 2.0))
    halt(job, 41, 2.0)
    job.restart()
    assert len(job.started) == 1


def test_a_size_that_is_the_present_one_again_needs_no_new_start() -> None:
    job = put_off(2, 3)
    job.target(2)
    job.report(1, Saved(40, "/c", 10, 0.1, 2.0))
    assert len(job.orders(Save)) == 1
    job.target(1)
    assert len(job.orders(Save)) == 2


def test_too_few_nodes_stop_a_job_that_is_put_off() -> None:
    job = put_off(2, 3)
    job.target(0)
    assert job.state.stopping is not None and len(job.orders(Save)) == 2
    halt(job, 30, 2.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_a_step_or_a_save_that_takes_long_loses_nothing() -> None:
    job = trains(2)
    job.target(1)
    job.tick(61.0)
    assert not job.told(GoOn), "the step goes on"
    job.report(2, Halted(12, saved=False))
    job.tick(59.0)
    assert not job.told(GoOn), "it is being saved"
    job.tick(3.0)
    assert job.told(GoOn) == [1, 2], "who saves does not answer"
    job.report(1, Saved(12, "/c", 10, 0.1, 100.0))
    assert len(job.orders(Save)) == 2
    job.report(2, Halted(14, saved=False))
    job.tick(290.0)
    assert len(job.orders(GoOn)) == 1, "it is known to take long"
    halt(job, 14, 100.0)
    job.restart()
    assert len(job.started) == 1


def test_where_nobody_holds_the_state_the_job_restarts_but_not_for_ever() -> None:
    job = trains(1)
    for _ in range(MOST_RESTARTS - 1):
        (member,) = job.state.survivors()
        job.rank_ended(member, signal=signal.SIGKILL)
        job.tick(COLLECT_SECONDS)
        assert job.finish is None and "all nodes restart" in job.events("warning")[-1]["message"]
        job.restart()
        (node,) = (one.node for one in job.started)
        job.warm(node)
        job.complete(0)
    job.rank_ended(job.state.group[0], signal=signal.SIGKILL)
    job.tick(COLLECT_SECONDS)
    assert job.finish is not None and job.finish.exit_code == 1
