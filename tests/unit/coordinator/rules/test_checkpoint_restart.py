"""A job with in-process resize restarts from its last checkpoint where no member is left that holds its state."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Done, Ended, Fail, Failed, Saved
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.api.live_status import phase
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.actions import Action, RestartAll, StartNode
from elastic_launcher.coordinator.model.observations import GroupHangs, Observation, StopAsked
from elastic_launcher.coordinator.model.restart_budget import MOST_RESTARTS, RestartBudget
from elastic_launcher.coordinator.model.state import Rules, State
from elastic_launcher.coordinator.resume.resume_search import used_up
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.rules.decide import decide_in_process
from elastic_launcher.coordinator.rules.ending import AGENT_SECONDS, COLLECT_SECONDS
from elastic_launcher.coordinator.rules.root_cause import PEER_SECONDS, concerns_a_peer
from elastic_launcher.workdir import Past
from tests.support.played_job import Job, training


class Falling(Job):
    """Such a job, played by hand."""

    def feed(self, observation: Observation) -> tuple[Action, ...]:
        self.state, actions = decide_in_process(self.state, observation)
        return self.take(actions)

    @property
    def restarts(self) -> bool:
        return any(isinstance(action, RestartAll) for action in self.actions)

    def lose_all(self) -> None:
        for member in self.state.survivors():
            self.rank_ended(member, signal=signal.SIGKILL)
        self.tick(COLLECT_SECONDS)

    def restart(self) -> None:
        """Does what the coordinator does once all nodes have gone, up to the next generation."""
        assert self.restarts and self.finish is None
        old, self.actions = self.state, []
        past = used_up(old, Past())
        rules = Rules(old.rules.min_nodes, 1, old.rules.store)
        numbers = {"first_node": past.first_node, "first_member": past.first_member}
        rules = replace(rules, **numbers, generations_before=past.generations, max_failures=old.rules.max_failures)
        self.state = state_after(old, State(rules, step=old.saved.step if old.saved else 0, saved=old.saved))
        assert old.target is not None
        self.target(old.target.nodes)
        self.warm(*(node.node for node in self.started))
        self.complete(self.state.step)


def trains(nodes: int, **rules: int) -> Falling:
    job = Falling(1)
    state = training(nodes).state
    job.state = replace(state, rules=replace(state.rules, **rules))
    return job


def test_where_nobody_holds_the_state_the_job_restarts_with_new_numbers_and_tells_why() -> None:
    job = trains(2)
    job.report(1, Saved(7, "/c", 10, 0.1, 0.2))
    formations = job.state.formations
    job.lose_all()
    (warning,) = job.events("warning")
    assert warning["message"].endswith("no other node holds the state; all nodes restart from step 7")
    assert not job.orders(Fail), "nothing has failed"
    assert phase(job.state) == "starting"
    job.now += 5.0
    job.restart()
    assert job.started == [StartNode(3, 3, 1), StartNode(4, 4, 1)]
    formed = job.events("generation_formed")[0]
    assert (formed["cause"], formed["pause_seconds"], formed["formation"]) == ("failure", 6.0, formations + 1)
    assert job.state.restart is None


def test_who_stops_a_job_before_it_restarts_need_not_ask_again() -> None:
    job = trains(3)
    job.report(1, Saved(7, "/c", 10, 0.1, 0.2))
    job.rank_ended(2, signal=signal.SIGKILL)
    job.report(1, Failed("RuntimeError: Connection closed by peer", "", 10))
    job.feed(StopAsked(job.now, "stopped by `elastic-launcher stop`"))
    job.tick(PEER_SECONDS)
    assert not job.restarts and job.finish is not None and job.finish.exit_code == ExitCode.STOPPED
    assert job.finish.message.startswith("stopped by `elastic-launcher stop` after step 10: member 1 ")
    assert job.finish.message.endswith("step 7 is saved in /c, the same command resumes from there")


def test_where_nothing_was_saved_it_says_that_it_begins_at_the_beginning() -> None:
    job = trains(1)
    job.lose_all()
    assert job.events("warning")[0]["message"].endswith("all nodes restart from the beginning: nothing was saved")


def test_a_job_that_gets_no_further_ends_at_the_third_time() -> None:
    job = trains(1)
    for _ in range(MOST_RESTARTS - 1):
        job.lose_all()
        job.restart()
    job.lose_all()
    assert job.finish is not None and job.finish.exit_code == ExitCode.SCRIPT_FAILED
    assert "it restarted 2 times and got no further than step" in job.finish.message


@pytest.mark.parametrize(
    ("steps", "too_often"),
    [((4, 5, 6, 7, 8), False), ((4, 4, 4), True), ((9, 4, 6), True), ((9, 4, 10, 3, 11), False)],
)
def test_it_counts_as_further_what_is_further_than_ever(steps: tuple[int, ...], too_often: bool) -> None:
    budget = RestartBudget()
    for step in steps:
        budget = budget.once_more(step)
    assert budget.too_often == too_often


def test_a_death_in_the_code_after_the_loop_restarts_the_job_once_the_others_have_ended() -> None:
    job = trains(2)
    job.report_all((1, 2), Done(9, 90))
    job.rank_ended(2, signal=signal.SIGKILL)
    job.report(1, Ended(9, True))
    assert not job.restarts, "what others do there is not broken off"
    job.rank_ended(1, 0)
    job.tick(AGENT_SECONDS)
    assert job.restarts and "what it had to do there may be missing" in job.events("warning")[0]["message"]


def test_an_exception_of_the_script_ends_the_job_also_where_nobody_else_is_left() -> None:
    job = trains(1)
    job.report(1, Failed("ValueError: a mistake"))
    job.rank_ended(1, 1)
    assert job.finish is not None and not job.restarts


def test_a_hint_below_the_minimum_ends_a_job_that_restarts_as_one_that_had_trained() -> None:
    job = trains(1)
    job.lose_all()
    old = job.state
    job.state = state_after(old, State(old.rules))
    job.target(0)
    assert job.finish is not None and job.finish.exit_code == ExitCode.STOPPED


CUT = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2134"


@pytest.mark.parametrize("first", ["the loss", "the exception"])
def test_an_exception_that_comes_with_the_loss_of_another_node_is_not_the_scripts_fault(first: str) -> None:
    job = trains(3, max_failures=0)
    job.report(1, Saved(7, "/c", 10, 0.1, 0.2))
    if first == "the loss":
        job.rank_ended(3, signal=signal.SIGKILL)
    job.report(1, Failed(CUT))
    job.report(2, Failed(CUT))
    if first == "the exception":
        job.tick(COLLECT_SECONDS + 1.0)
        assert not job.restarts and job.finish is None, "others are as busy as that one was quick"
        job.rank_ended(3, signal=signal.SIGKILL)
    assert job.restarts and job.finish is None
    (warning,) = job.events("warning")
    assert "that came with the loss of member 3 (rank 2, node 3)" in warning["message"]
    assert warning["message"].endswith("all nodes restart from step 7")


def test_an_exit_code_that_comes_with_the_loss_of_another_node_is_not_the_scripts_fault() -> None:
    job = trains(2)
    job.rank_ended(2, signal=signal.SIGKILL)
    job.rank_ended(1, 1)
    assert job.restarts and job.finish is None


def test_such_an_exception_is_none_of_the_failures_that_are_borne() -> None:
    job = trains(3, max_failures=1)
    job.rank_ended(3, signal=signal.SIGKILL)
    job.report_all((1, 2), Failed(CUT))
    assert job.restarts and not job.state.borne and len(job.events("node_lost")) == 1


def test_the_exception_of_one_rank_does_not_excuse_that_of_another() -> None:
    job = trains(3, max_failures=1)
    job.report(3, Failed("ValueError: a mistake"))
    job.report_all((1, 2), Failed("ValueError: a mistake"))
    job.tick(PEER_SECONDS)
    assert job.finish is not None and job.finish.exit_code == ExitCode.SCRIPT_FAILED and not job.restarts


def test_a_loss_on_its_own_node_excuses_nobody() -> None:
    job = Falling(1, 2)
    job.state = training(2, nproc=2).state
    job.report(1, Failed("ValueError: a mistake"))
    job.rank_ended(2, signal=signal.SIGTERM)
    job.tick(PEER_SECONDS)
    assert job.finish is not None and not job.restarts


def test_a_connection_that_is_lost_without_a_loss_is_the_scripts_fault() -> None:
    job = trains(2)
    job.report(1, Failed(CUT))
    job.tick(PEER_SECONDS)
    assert job.finish is not None and CUT in job.finish.message


@pytest.mark.parametrize(
    ("failure", "tells"),
    [
        (Failed(CUT), True),
        (Failed("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690"), True),
        (Failed("DistNetworkError: The client has timed out"), True),
        (
            Failed("Aborted: no sum", 'File "/lib/torch/distributed/distributed_c10d.py", line 3037, in all_reduce'),
            True,
        ),
        (Failed("ValueError: a mistake", 'File "/lib/torch/nn/modules/linear.py", line 134, in forward'), False),
        (Failed("RuntimeError: 0.weight differs between ranks 0 and 1"), False),
    ],
)
def test_which_exceptions_tell_of_a_peer(failure: Failed, tells: bool) -> None:
    assert concerns_a_peer(failure) == tells


@pytest.mark.parametrize("mistaken", [1, 2], ids=["said first", "said last"])
def test_a_mistake_of_the_script_ends_the_job_also_beside_a_loss(mistaken: int) -> None:
    job = trains(3)
    job.rank_ended(3, signal=signal.SIGKILL)
    job.report(1, Failed("ValueError: a mistake" if mistaken == 1 else CUT))
    job.report(2, Failed("ValueError: a mistake" if mistaken == 2 else CUT))
    job.tick(COLLECT_SECONDS)
    assert job.finish is not None and not job.restarts and "ValueError" in job.finish.message


def test_who_waits_for_a_lost_peer_in_a_group_of_the_scripts_own_restarts_the_job() -> None:
    """The others wait for it to be formed again, and it can't be told."""
    job = trains(3)
    watch = Watch(10.0, 60.0, job.now)

    def look() -> list[GroupHangs]:
        for number in (1, 2):
            watch.hear(number, job.now, Vitals(waits=61.0, outside=61.0 if number == 1 else 0.0, usual=0.5))
        return [one for one in watch.look(job.state, job.now) if isinstance(one, GroupHangs)]

    assert look() == [], "nobody is lost: it may wait as long as it likes"
    job.rank_ended(3, signal=signal.SIGKILL)
    (hangs,) = look()
    job.feed(hangs)
    assert job.restarts
    assert "member 1 (rank 0, node 1) has waited 61 s in a collective" in job.events("warning")[0]["message"]
