"""Rounds of a script that knows nothing of the launcher, decided from what its nodes tell."""

from __future__ import annotations

import signal

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.actions import (
    CloseRound,
    Emit,
    Finish,
    KillNode,
    LetGo,
    OpenRound,
    RestartAll,
    StartNode,
)
from elastic_launcher.coordinator.model.observations import (
    Interrupted,
    MemberJoined,
    NodeExited,
    NodeNoticed,
    NodeWaits,
    RankEnded,
    RankStarted,
    StopAsked,
    TargetChanged,
    Tick,
)
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.model.state import Rules, State, Target
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.coordinator.rules.checkpoint_restart import state_after
from elastic_launcher.coordinator.rules.ending import COLLECT_SECONDS
from elastic_launcher.coordinator.rules.respawn.ends import MOST_SHORT_ROUNDS, STOP_SECONDS
from elastic_launcher.coordinator.rules.respawn.round_state import GATHER_SECONDS
from elastic_launcher.coordinator.rules.respawn.rounds import OWN_SAVES, decide_rounds
from elastic_launcher.workdir import Past
from tests.support.checkpoints import manifest


class Rounds:
    """A job of such a script, played by hand."""

    def __init__(self, target: int, minimum: int = 1, nproc: int = 1, **rules: object) -> None:
        self.now = 100.0
        self.nproc = nproc
        self.state = State(Rules(minimum, nproc, "127.0.0.1:1", own_saves=True, **rules))  # type: ignore[arg-type]
        self.actions: list[object] = []
        self.target(target, "start")

    def feed(self, kind: type, *fields: object) -> None:
        self.state, actions = decide_rounds(self.state, kind(self.now, *fields))
        self.actions += actions

    def target(self, nodes: int, cause: str = "hint") -> None:
        self.feed(TargetChanged, Target(nodes, cause))

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.feed(Tick)

    def wait(self, *nodes: int) -> None:
        for node in nodes:
            self.feed(NodeWaits, node)

    def start(self, *nodes: int) -> None:
        size = len(nodes) * self.nproc
        for place, node in enumerate(nodes):
            for local in range(self.nproc):
                self.feed(RankStarted, node, local, 1000 + node, place * self.nproc + local, size)

    def end(self, node: int, code: int | None = None, number: int | None = None, local: int = 0) -> None:
        self.feed(RankEnded, node, local, Exit(code, number))

    def back(self, *nodes: int) -> None:
        """torchrun has ended its workers and waits for the next round."""
        for node in nodes:
            for local in range(self.nproc):
                self.end(node, number=signal.SIGTERM, local=local)
            self.wait(node)

    def of(self, kind: type) -> list[object]:
        return [action for action in self.actions if isinstance(action, kind)]

    def formed(self) -> list[tuple[int, str]]:
        found = [one for one in self.actions if isinstance(one, Emit) and one.kind == "generation_formed"]
        return [(one.fields["world_size"], one.fields["cause"]) for one in found]

    def finish(self) -> Finish:
        (found,) = self.of(Finish)
        assert isinstance(found, Finish)
        return found


def running(nodes: int, **settings: object) -> Rounds:
    job = Rounds(nodes, **settings)  # type: ignore[arg-type]
    names = range(1, nodes + 1)
    job.wait(*names)
    job.start(*names)
    assert job.formed() == [(nodes * job.nproc, "start")]
    return job


def test_a_round_waits_for_those_that_come_but_not_for_ever() -> None:
    job = Rounds(3)
    job.wait(1, 2)
    job.tick(GATHER_SECONDS - 1)
    assert not job.of(OpenRound)
    job.tick(1)
    assert job.of(OpenRound) == [OpenRound(1, (1, 2))]


def test_a_round_lasts_until_a_new_node_is_there_and_its_workers_have_ended() -> None:
    job = running(1)
    job.target(2)
    assert not job.of(CloseRound)
    job.wait(2)
    assert job.of(CloseRound) == [CloseRound(1)] and len(job.of(OpenRound)) == 1
    job.now += 1.5
    job.back(1)
    assert job.of(OpenRound)[1:] == [OpenRound(2, (1, 2))]
    job.start(1, 2)
    assert job.formed() == [(1, "start"), (2, "hint")]
    assert [one.fields["pause_seconds"] for one in job.of(Emit) if one.kind == "generation_formed"] == [0.0, 1.5]  # type: ignore[attr-defined]


def test_the_youngest_goes_when_the_target_falls_and_only_once_its_workers_have_ended() -> None:
    job = running(2)
    job.target(1)
    assert job.of(CloseRound) == [CloseRound(1)] and not job.of(KillNode)
    job.back(1)
    job.tick()
    assert not job.of(KillNode) and len(job.of(OpenRound)) == 1
    job.back(2)
    assert job.of(KillNode) == [KillNode(2)] and job.of(OpenRound)[1:] == [OpenRound(2, (1,))]


def test_a_noticed_node_leaves_whatever_its_age() -> None:
    job = running(2)
    job.feed(NodeNoticed, 1, "signal")
    job.back(1, 2)
    job.start(2)
    assert job.formed()[1:] == [(1, "notice")]


def test_why_a_node_ended_is_told_as_in_the_first_tier() -> None:
    job = running(2)
    job.feed(NodeExited, 1, -9, (), "OOMKilled: out of memory")
    job.target(3)
    job.feed(NodeExited, 3, 1, (), "", False, "ImportError: no torch")
    told = [one.fields["message"] for one in job.actions if isinstance(one, Emit) and one.kind == "warning"]
    assert told == ["node 1: OOMKilled: out of memory", "node 3: ImportError: no torch"]


def test_a_loss_explains_the_failures_of_the_others() -> None:
    job = running(2)
    job.end(1, code=1)  # its collective broke
    job.end(2, number=signal.SIGKILL)
    assert job.of(KillNode) == [KillNode(2)] and not job.of(Finish)
    job.wait(1)
    job.feed(NodeExited, 2, -9)
    assert job.of(StartNode)[2:] == [StartNode(3, 3, 1)]
    started = [one.fields.get("others_wait") for one in job.of(Emit) if one.kind == "node_started"]
    assert started == [None, None, True]
    job.wait(3)
    job.start(1, 3)
    assert job.formed()[1:] == [(2, "failure")] and not job.of(Finish)


@pytest.mark.parametrize(("budget", "ends"), [(0, True), (1, False)])
def test_a_failure_of_the_script_ends_the_job_or_is_borne(budget: int, ends: bool) -> None:
    job = running(2, max_failures=budget)
    job.end(2, code=3)
    assert not job.of(Finish)
    job.tick(1.0)
    assert bool(job.of(Finish)) is ends and bool(job.of(KillNode)) is not ends
    if ends:
        assert job.finish().exit_code == 1 and "exited with code 3" in job.finish().message
        assert job.finish().message.endswith(OWN_SAVES)


def test_torchrun_ending_a_sibling_is_no_loss() -> None:
    job = running(1, nproc=2)
    job.end(1, code=3, local=1)
    job.end(1, number=signal.SIGTERM, local=0)
    assert job.finish().exit_code == 1 and "code 3" in job.finish().message


def test_all_ranks_ending_well_is_the_end_and_half_of_them_changes_nothing() -> None:
    job = running(2)
    job.end(1, code=0)
    job.target(1)
    job.tick()
    assert not job.of(CloseRound) and not job.of(Finish)
    job.end(2, code=0)
    assert job.finish().exit_code == 0


def test_rounds_that_break_off_again_and_again_end_the_job() -> None:
    job = running(1)
    for number in range(1, MOST_SHORT_ROUNDS):
        job.end(number, number=signal.SIGKILL)
        job.feed(NodeExited, number, -9)
        job.tick(40.0)
        job.wait(number + 1)
        job.start(number + 1)
        assert not job.of(Finish)
    job.end(MOST_SHORT_ROUNDS, number=signal.SIGKILL)
    assert job.finish().exit_code == 1 and "in a row" in job.finish().message


def test_a_node_that_does_not_end_its_workers_is_killed_and_replaced() -> None:
    job = running(2)
    job.feed(NodeNoticed, 1, "signal")
    job.back(1)
    job.tick(STOP_SECONDS + 1)
    assert KillNode(2) in job.of(KillNode)


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(signal.SIGINT, 130, "interrupted from the keyboard"), (signal.SIGTERM, 75, "stopped by SIGTERM")],
)
def test_a_stop_ends_the_workers_first(number: int, code: int, why: str) -> None:
    job = running(2)
    job.feed(Interrupted, number)
    assert job.of(CloseRound) and not job.of(Finish)
    job.back(1, 2)
    assert job.finish().exit_code == code
    assert job.finish().message == f"{why} in generation 1; {OWN_SAVES}"  # its steps are not known


def test_a_stop_is_not_forgotten_where_a_failure_costs_only_its_node() -> None:
    job = running(2, max_failures=1)
    job.end(1, code=3)
    job.feed(StopAsked, "its time is over")
    job.tick(COLLECT_SECONDS)
    job.tick()
    job.feed(NodeExited, 1, 1)
    job.back(2)
    assert job.finish().exit_code == 75 and job.finish().message.startswith("its time is over")


def test_a_job_that_is_to_stop_is_not_restarted_for_a_script_of_our_library() -> None:
    job = running(1)
    job.feed(StopAsked, "its time is over")
    job.feed(MemberJoined, 1, 1001)
    assert not job.of(RestartAll) and job.finish().exit_code == 75


def test_a_script_of_our_library_is_restarted() -> None:
    job = running(1)
    job.feed(MemberJoined, 1, 1001)
    assert job.of(RestartAll) and job.state.finished


def test_under_c10d_generations_are_what_torchrun_speaks_of() -> None:
    job = Rounds(1, c10d=True)
    job.start(1)
    assert job.formed() == [(1, "start")] and not job.of(OpenRound)
    job.target(2)
    job.end(1, number=signal.SIGTERM)  # torchrun's rendezvous takes the new node in
    job.start(1, 2)
    job.target(1)
    assert job.of(LetGo) == [LetGo(2)] and not job.of(CloseRound)
    job.end(2, number=signal.SIGTERM)
    job.end(1, code=1)
    job.feed(NodeExited, 2, 1)
    job.start(1)
    assert job.formed() == [(1, "start"), (2, "hint"), (1, "hint")] and not job.of(Finish)


@pytest.mark.parametrize("saved", [False, True], ids=["it saves by itself", "a checkpoint of ours is there"])
def test_a_launcher_that_starts_again_in_a_wait_names_a_step_only_where_it_is_known(
    saved: bool,
) -> None:
    wait = EarlierWait("node 1 must leave (notice)", 600.0, "notice")
    origin = Origin(Past(), manifest=manifest(11) if saved else None, waits=wait)
    config = JobConfig(script="train.py", min_nodes=1, max_nodes=4, node_timeout=1800.0, resize="respawn")
    job = Rounds(1)
    job.state, job.actions = origin.first_state(config, "host:1"), []
    job.target(1, "start")
    (told,) = [one.fields for one in job.actions if isinstance(one, Emit) and one.kind == "nodes_wait"]
    assert told.get("step") == (11 if saved else None)
    assert ("step" in told) is saved


def test_a_script_that_uses_our_library_does_not_save_by_itself() -> None:
    config = JobConfig(script="train.py", min_nodes=1, max_nodes=4, resize="respawn")
    first = Origin().first_state(config, "host:1")
    job = Rounds(1)
    job.state = first
    job.target(1, "start")
    assert job.state.rules.own_saves
    job.feed(MemberJoined, 1, 1001)
    assert not state_after(job.state, first).rules.own_saves
