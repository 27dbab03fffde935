"""A job whose script uses our library, and that changes its size by a new start."""

from __future__ import annotations

import signal
from dataclasses import replace

from elastic_launcher.control.messages import Halted, Save, Saved
from elastic_launcher.coordinator.actions import Action, StartAnew, StartNode
from elastic_launcher.coordinator.again import used_up
from elastic_launcher.coordinator.decide_end import COLLECT_SECONDS
from elastic_launcher.coordinator.fallen import MOST_FALLS
from elastic_launcher.coordinator.observations import Observation
from elastic_launcher.coordinator.respawn.anew import state_after
from elastic_launcher.coordinator.respawn.restart import decide_restarts
from elastic_launcher.coordinator.state import Rules, State
from elastic_launcher.workdir import Past
from tests.unit.coordinator.driver import Job, training


class Anew(Job):
    """Such a job, played by hand."""

    def feed(self, observation: Observation) -> tuple[Action, ...]:
        self.state, actions = decide_restarts(self.state, observation)
        self.actions += actions
        return actions

    def begin_anew(self) -> None:
        """Does what the coordinator does once all nodes have gone."""
        assert [one for one in self.actions if isinstance(one, StartAnew)] and self.state.finished
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


def test_a_hint_has_the_job_save_stand_still_and_begin_anew_with_new_numbers() -> None:
    job = trains(1)
    job.target(2)
    assert job.orders(Save) == [Save(halt=True)] and not job.started
    job.now += 5
    halt(job, 12, 2.0)
    assert [event["cause"] for event in job.events("node_left")] == ["hint"]
    job.begin_anew()
    assert job.started == [StartNode(2, 2, 1), StartNode(3, 3, 1)]
    job.state = replace(job.state, rules=replace(job.state.rules, min_nodes=2))
    job.warm(2, 3)
    job.now += 4
    job.complete(12)
    formed = job.events("generation_formed")[0]
    assert (formed["cause"], formed["pause_seconds"]) == ("hint", 6.0), "saving and starting are the pause"
    assert job.state.generation_number == 2 and job.state.restart is None


def test_a_notice_begins_anew_without_that_node_and_below_the_minimum_ends_the_job() -> None:
    job = trains(2)
    job.notice(1)
    halt(job, 12, 0.0)
    job.begin_anew()
    assert len(job.started) == 1
    job = trains(2, minimum=2)
    job.notice(1)
    halt(job, 12, 0.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_after_a_loss_the_others_do_the_step_again_and_save_before_all_begin_anew() -> None:
    job = trains(2)
    job.rank_ended(2, signal=signal.SIGKILL)
    assert not job.started and job.orders(Save) == [Save(halt=True)]
    job.break_step([1], 1, 12)
    job.complete(12)
    halt(job, 13, 0.0)
    job.begin_anew()
    assert len(job.started) == 2


def test_where_nobody_holds_the_state_all_begin_anew_but_not_for_ever() -> None:
    job = trains(1)
    for _ in range(MOST_FALLS - 1):
        (member,) = job.state.survivors()
        job.rank_ended(member, signal=signal.SIGKILL)
        job.tick(COLLECT_SECONDS)
        assert job.finish is None and "all nodes start anew" in job.events("warning")[-1]["message"]
        job.begin_anew()
        (node,) = (one.node for one in job.started)
        job.warm(node)
        job.complete(0)
    job.rank_ended(job.state.group[0], signal=signal.SIGKILL)
    job.tick(COLLECT_SECONDS)
    assert job.finish is not None and job.finish.exit_code == 1
