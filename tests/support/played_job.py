"""A job played by hand: observations go into ``decide``, what it asks for is kept to be looked at."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from elastic_launcher.control.messages import Active, Done, Ended, Form, Formed, Left, Message, StepFailed, Warm
from elastic_launcher.coordinator.model.actions import Action, Emit, Finish, KillNode, Order, StartNode
from elastic_launcher.coordinator.model.deadlines import NOTICE_GATHER_SECONDS
from elastic_launcher.coordinator.model.observations import (
    MemberJoined,
    MemberReported,
    NodeExited,
    NodeNoticed,
    Observation,
    RankEnded,
    TargetChanged,
    Tick,
)
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.model.state import Rules, State, Target
from elastic_launcher.coordinator.rules.decide import decide

AnyMessage = TypeVar("AnyMessage", bound=Message)


class Job:
    """One job under test.

    Attributes:
        now: The clock, in seconds.
        state: What the coordinator knows.
        actions: All that it asked for so far.
        news: What it asked for since ``look`` was called last.
    """

    def __init__(
        self,
        minimum: int = 1,
        nproc: int = 1,
        target: int | None = None,
        watch: Callable[[Job, tuple[Action, ...]], None] = lambda job, actions: None,
        **rules: Any,
    ) -> None:
        self.watch = watch
        self.now = 100.0
        self.state = State(Rules(minimum, nproc, "127.0.0.1:29500", **rules))
        self.actions: list[Action] = []
        self.news: list[Action] = []
        if target is not None:
            self.target(target, "start")

    def feed(self, observation: Observation) -> tuple[Action, ...]:
        self.state, actions = decide(self.state, observation)
        return self.take(actions)

    def take(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        self.actions += actions
        self.news += actions
        self.watch(self, actions)
        return actions

    def look(self) -> list[Action]:
        """Returns the news, and starts over."""
        news, self.news = self.news, []
        return news

    def tick(self, seconds: float = 0.0) -> tuple[Action, ...]:
        self.now += seconds
        return self.feed(Tick(self.now))

    def target(self, nodes: int, cause: str = "hint", message: str = "", **hint: Any) -> tuple[Action, ...]:
        return self.feed(TargetChanged(self.now, Target(nodes, cause, **hint), message))

    def report(self, member: int, report: Message) -> tuple[Action, ...]:
        return self.feed(MemberReported(self.now, member, report))

    def report_all(self, members: Iterable[int], report: Message) -> None:
        for member in members:
            self.report(member, report)

    def notice(self, node: int) -> tuple[Action, ...]:
        """Gives notice to a node, and passes the time in which others might be given it too."""
        return self.feed(NodeNoticed(self.now, node, "signal")) + self.tick(NOTICE_GATHER_SECONDS + 0.01)

    def rank_ended(self, member: int, code: int | None = None, signal: int | None = None) -> tuple[Action, ...]:
        one = self.state.members[member]
        return self.feed(RankEnded(self.now, one.node, one.local_rank, Exit(code, signal)))

    def node_exited(self, node: int, exit_code: int = 0) -> tuple[Action, ...]:
        return self.feed(NodeExited(self.now, node, exit_code))

    def join(self, *nodes: int) -> None:
        for node in nodes:
            for member in self.state.nodes[node].members:
                self.feed(MemberJoined(self.now, member, 1000 + member))

    def warm(self, *nodes: int, fingerprint: dict[str, Any] | None = None) -> None:
        self.join(*nodes)
        for node in nodes:
            for member in self.state.nodes[node].members:
                self.report(member, Warm(fingerprint or {"dataset": 100}))

    def complete(self, step: int = 0, pause: float = 0.01) -> None:
        """Lets the formation under way become a generation, its leavers first."""
        formation = self.state.formation
        assert formation is not None
        self.report_all((*formation.members, *formation.leavers), Formed(formation.number))
        self.report_all(formation.leavers, Left(step))
        first = step + (formation.mode == "grow")
        self.report_all(formation.members, Active(formation.number, first, step + 1, 0, pause))

    def break_step(self, members: Iterable[int], formation: int, step: int) -> None:
        self.report_all(members, StepFailed(formation, step, "Connection reset by peer"))

    def train_to_the_end(self, step: int) -> None:
        group = self.state.group
        self.report_all(group, Done(step, 64 * step))
        self.report_all(group, Ended(step, True))
        for member in group:
            self.rank_ended(member, 0)
        for node in self.state.nodes_of(group):
            self.node_exited(node)

    @property
    def finish(self) -> Finish | None:
        found = [action for action in self.actions if isinstance(action, Finish)]
        assert len(found) <= 1
        return found[0] if found else None

    def orders(self, kind: type[AnyMessage], actions: Iterable[Action] | None = None) -> list[AnyMessage]:
        among = self.actions if actions is None else actions
        return [one.order for one in among if isinstance(one, Order) and isinstance(one.order, kind)]

    def told(self, kind: type[Message]) -> list[int]:
        """Returns who got orders of a kind."""
        return [
            member
            for one in self.actions
            if isinstance(one, Order) and isinstance(one.order, kind)
            for member in one.members
        ]

    @property
    def form(self) -> Form:
        """The last order to form."""
        return self.orders(Form)[-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(one.fields) for one in self.actions if isinstance(one, Emit) and one.kind == kind]

    @property
    def killed(self) -> list[int]:
        return [one.node for one in self.actions if isinstance(one, KillNode)]

    @property
    def started(self) -> list[StartNode]:
        return [one for one in self.actions if isinstance(one, StartNode)]


def training(nodes: int, minimum: int = 1, nproc: int = 1, step: int = 10, **rules: Any) -> Job:
    """Returns a job that trains on so many nodes, in generation 1."""
    job = Job(minimum, nproc, target=nodes, **rules)
    # The first generation waits only for the minimum: have them warm in one go, below a minimum of all.
    job.state = _with_minimum(job.state, nodes)
    job.warm(*range(1, nodes + 1))
    job.state = _with_minimum(job.state, minimum)
    job.complete(step - 1)
    job.look()
    return job


def growing(survivors: int = 1, joiners: int = 1, nproc: int = 1) -> Job:
    """A job whose grow formation has just been ordered."""
    job = training(survivors, nproc=nproc)
    job.target(survivors + joiners)
    new = range(survivors + 1, survivors + joiners + 1)
    job.join(*new)
    job.warm(*new)
    job.look()
    return job


def lose(job: Job, member: int) -> None:
    """Kills a member."""
    job.rank_ended(member, signal=signal.SIGKILL)


def redo(job: Job, formation: int, step: int) -> None:
    """Has all survivors say that their step broke off, and do it again."""
    job.break_step(job.state.survivors(), formation, step)
    job.complete(step)


def _with_minimum(state: State, minimum: int) -> State:
    from dataclasses import replace

    return replace(state, rules=replace(state.rules, min_nodes=minimum))
