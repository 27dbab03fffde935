"""The state of a job as a pure fold of its events, shared by the progress line, the status and the metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from elastic_launcher.adaptive.observations import merged
from elastic_launcher.config import ExitCode
from elastic_launcher.events import Event, finite
from elastic_launcher.logged import Logged
from elastic_launcher.report.usage import Usage

SMOOTHING_SECONDS = 15.0
"""The time over which the length of a step is averaged for the time left: seconds of noise must not make it jump."""

STOPPED = (ExitCode.STOPPED, ExitCode.INTERRUPTED, ExitCode.NO_QUOTA)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, by the events.

    Attributes:
        phase: ``starting``, ``warm`` (waits to be admitted), ``training``, ``leaving``, ``left``, ``failed``, ``lost``.
        pod: The name of its pod in a cluster; "" elsewhere.
        began: When its processes began, or its last pod ran, in seconds since the epoch; None where that is not known.
    """

    node: int
    members: tuple[int, ...]
    phase: str
    pod: str = ""
    began: float | None = None

    @property
    def is_there(self) -> bool:
        """Whether it holds GPUs."""
        return self.phase in ("starting", "warm", "training", "leaving")


About = Literal["pending", "hints", ""]
"""What a message is about that is over with it."""

PLACED = ("node_placed", "node_warm", "node_left", "node_failed", "node_lost")
"""What happens to a node that waits for no place any more."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job after some events.

    Attributes:
        started: What ``job_started`` said.
        started_at: Seconds since the epoch.
        last_at: Time of the last event.
        epoch: Of the last progress, from 0.
        epochs: Of the whole training, or None.
        statistical_epoch: How many statistical epochs are done, which ``epochs`` counts then; None with a fixed batch.
        total_steps: Of the whole training, or None.
        loss: Of the last progress; a text for what is no finite number; None before.
        samples_per_second: Of the last progress that has it, or None.
        step_seconds: How long a step takes now, on average; None before that is known.
        steady_seconds: The same over those steps of the generation that follow its first report; None before.
        speeds: Steps a second by the number of ranks, each as it was last, without the time of reconfigurations.
        adaptive: The values of the adaptive batch in the last progress, by name; empty with a fixed one.
        learning_rate_rule: By which learning rates follow the batch, as its last change says; None before.
        step_times: What the ``step_times`` events said together, as `adaptive.step_times` reads it; empty before.
        members: Of the generation, in rank order: ``member`` and ``node`` of each.
        nodes: All that ever were, by their numbers.
        generation: Its number.
        resizes: How many generations came after the first, but for those that only brought the job to its size.
        hint: The last ``hint_applied``.
        waits_for: What the job that does not train waits for, in a sentence; empty while it does not wait.
        lacks: The same in a word: ``quota`` or ``nodes``; empty while it does not wait.
        message: Of the last warning, rejection, failure or loss; empty where that is over.
        pending: Nodes that wait for a place, by the last event.
        queued: Those of them that wait for their queue to admit them.
        about: What the message is about, and with what it is over: nodes that wait for a place, or hints that can't be
            used; "" if it stays.
        finished: What ``job_finished`` said, or None.
        stragglers: What the last ``straggler`` of each member that is slow said, by member.
        timed_from: From when on the steps of the next progress took their time, or None.
        timed_generation: The generation of the last progress.
        silent: The last ``silent`` event of each silent member, by member.
        usage: Of GPUs, so far.
    """

    started: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    last_at: float = 0.0
    step: int = 0
    epoch: int = 0
    epochs: int | None = None
    statistical_epoch: float | None = None
    total_steps: int | None = None
    samples: int = 0
    loss: float | str | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    steady_seconds: float | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)
    adaptive: Mapping[str, float] = field(default_factory=dict)
    learning_rate_rule: str | None = None
    step_times: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 0
    members: tuple[Mapping[str, int], ...] = ()
    nodes: Mapping[int, NodeState] = field(default_factory=dict)
    generation: int = 0
    resizes: int = 0
    hint: Mapping[str, Any] = field(default_factory=dict)
    waits_for: str = ""
    lacks: str = ""
    message: str = ""
    pending: frozenset[int] = frozenset()
    queued: frozenset[int] = frozenset()
    about: About = ""
    log: Logged = field(default_factory=Logged)
    finished: Mapping[str, Any] | None = None
    stragglers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    timed_from: float | None = None
    silent: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    timed_generation: int = 0
    usage: Usage = Usage()

    @property
    def seconds_left(self) -> float | None:
        """The rest of the training at its present speed; None while that is not known, or nobody trains."""
        if self.total_steps is None or self.step_seconds is None or self.finished is not None or self.waits_for:
            return None
        return max(0, self.total_steps - self.step) * self.step_seconds

    @property
    def logged(self) -> dict[str, Any]:
        """The last values of ``job.log``."""
        return self.log.last()

    @property
    def quota(self) -> dict[str, int]:
        """The numbers of the hint in force, in GPUs; those that it does not give are left out."""
        found = {name: self.hint.get(name) for name in ("guaranteed", "allowed", "limit")}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def admitted(self) -> int | None:
        """GPUs that the job's queue has given it; None while no node waits for that, or there is no queue."""
        queued = self.queued & self.pending
        if not queued:
            return None
        there = sum(node.is_there and node.node not in queued for node in self.nodes.values())
        return there * int(self.started.get("nproc_per_node") or 1)

    @property
    def held(self) -> int:
        """GPUs that its nodes hold, or wait for in the cluster; a rank counts as one."""
        return self._gpus(node.is_there for node in self.nodes.values())

    @property
    def placed(self) -> int:
        """GPUs of those nodes that wait for no place."""
        return self._gpus(node.is_there and node.node not in self.pending for node in self.nodes.values())

    def _gpus(self, nodes: Iterable[bool]) -> int:
        return 0 if self.finished is not None else sum(nodes) * int(self.started.get("nproc_per_node") or 1)

    @property
    def outcome(self) -> str:
        """``starting``, ``running``, ``waiting``, ``finished``, ``stopped`` or ``failed``."""
        if self.finished is None and self.waits_for:
            return "waiting"
        if self.finished is None:
            return "running" if self.generation else "starting"
        return outcome(self.finished.get("exit_code"))


def outcome(exit_code: object) -> str:
    """Returns what an exit code of the launcher says about its job: ``finished``, ``stopped`` or ``failed``."""
    if exit_code == ExitCode.DONE:
        return "finished"
    return "stopped" if exit_code in STOPPED else "failed"


_MOVES_NO_NODE = ("progress", "log", "straggler", "silent", "step_times")
"""Kinds that come all the time, after which GPUs need not be counted."""


def advance(state: JobState, event: Event) -> JobState:
    """Returns the state after one more event; kinds that it does not know change only the time."""
    after = _advance(state, event)
    if event.kind in _MOVES_NO_NODE:
        return after
    now = after.last_at
    # the nodes of a launcher that was killed held nothing by the time the next one started
    held_until = state.last_at if event.kind == "job_started" else now
    usage = after.usage.hold(after.placed, held_until).follow(event, now, resized=after.world_size != state.world_size)
    if took := _start_seconds(state, after):
        usage = replace(usage, start_seconds=took)
    return replace(after, usage=usage)


def _start_seconds(before: JobState, after: JobState) -> float | None:
    """Returns how long the slowest node that was admitted took from its start; None where none was."""
    if after.generation == before.generation:
        return None
    starting = (before.nodes.get(member["node"]) for member in after.members)
    began = [one.began for one in starting if one and one.phase in ("starting", "warm") and one.began is not None]
    return after.last_at - min(began) if began else None


def _advance(state: JobState, event: Event) -> JobState:
    now = max(state.last_at, event.time)  # a wall clock may be set back
    get = event.get
    match event.kind:
        case "progress":
            return replace(
                state,
                last_at=now,
                timed_from=now,
                step=max(state.step, get("step") or 0),
                epoch=get("epoch") or 0,
                epochs=get("epochs"),
                statistical_epoch=get("statistical_epoch"),
                total_steps=get("total_steps"),
                samples=get("samples") or state.samples,
                loss=get("loss"),
                adaptive=get("adaptive") or {},
                samples_per_second=finite(get("samples_per_second")) or state.samples_per_second,
                step_seconds=_step_seconds(state, event, now),
                steady_seconds=(steady := _steady_seconds(state, event, now)),
                speeds=_speeds(state, event, steady),
                timed_generation=event.generation,
            )
        case "log":
            log, _ = state.log.add(get("step") or 0, get("rank") or 0, get("values") or {})
            return replace(state, last_at=now, log=log)
        case "batch_changed":
            return replace(state, last_at=now, learning_rate_rule=get("learning_rate_rule"))
        case "step_times":
            return replace(state, last_at=now, step_times=merged(state.step_times, event.fields))
        case "straggler":
            return replace(state, last_at=now, stragglers=_told_again(state.stragglers, event))
        case "silent":
            return replace(state, last_at=now, silent=_told_again(state.silent, event))
        case "job_started":
            return _start(state, event, now)
        case "hint_applied":
            state = replace(state, last_at=now, hint=event.fields)
            over = state.about == "hints" and not get("stale")
            return replace(state, message="", about="") if over else state
        case "generation_formed":
            return _form(state, event, now)
        case "quota_wait":
            gone = _without_nodes(state.nodes)
            waits_for = str(get("message") or "")
            return replace(state, last_at=now, nodes=gone, members=(), world_size=0, waits_for=waits_for, lacks="quota")
        case "quota_back":
            step = state.step if get("step") is None else get("step")
            return replace(state, last_at=now, waits_for="", lacks="", step=step)
        case "nodes_wait":  # those that are kept come up yet
            waits_for = str(get("message") or "")
            step = state.step if get("step") is None else get("step")
            return replace(state, last_at=now, members=(), world_size=0, waits_for=waits_for, lacks="nodes", step=step)
        case "job_finished":
            return replace(
                state,
                last_at=now,
                finished=event.fields,
                step=get("steps") or state.step,
                samples=get("samples") or state.samples,
            )
    state = replace(state, last_at=now)
    if event.kind in ("warning", "hint_rejected", "hint_missing", "node_failed", "node_lost"):
        pending = frozenset(get("pending") or ())
        about: About = "pending" if pending else "hints" if event.kind in ("hint_rejected", "hint_missing") else ""
        state = replace(state, message=str(get("message") or ""), about=about, pending=pending or state.pending)
        state = replace(state, queued=frozenset(get("queued") or ())) if pending else state
    if "node" in event:
        state = _follow_node(state, event)
    if "node" in event and event.kind in PLACED:
        state = _without_pending(state, {event["node"]})
    return state


def _told_again(told: Mapping[int, Mapping[str, Any]], event: Event) -> dict[int, Mapping[str, Any]]:
    """Returns the last event of each member that something is so of, after one that says it, or that it is over."""
    others = {member: last for member, last in told.items() if member != event.get("member")}
    return others if event.get("over") else {**others, event.get("member"): event.fields}


def _without_pending(state: JobState, nodes: set[int]) -> JobState:
    """Returns the state in which these nodes wait for a place no longer."""
    pending = state.pending - nodes
    if state.about == "pending" and state.pending and not pending:
        state = replace(state, message="", about="")
    return replace(state, pending=pending)


def _start(state: JobState, event: Event, now: float) -> JobState:
    """Begins the job, or another run of it: then the nodes of the run before are gone, however that one ended."""
    nodes = _without_nodes(state.nodes)
    return replace(
        state,
        last_at=now,
        waits_for="",
        lacks="",
        started=event.fields,
        started_at=state.started_at or now,
        nodes=nodes,
        members=(),
        stragglers={},
        pending=frozenset(),
        silent={},
        world_size=0,
        finished=None,
        step=event.get("resumed_step") or 0,
    )


def _without_nodes(nodes: Mapping[int, NodeState]) -> dict[int, NodeState]:
    return {number: replace(node, phase="left") if node.is_there else node for number, node in nodes.items()}


def _step_seconds(state: JobState, event: Event, now: float) -> float | None:
    """Averages the time of a step; a new generation starts a new average."""
    known = state.step_seconds
    return _averaged(known if state.timed_generation == event.generation else None, state, event, now) or known


def _steady_seconds(state: JobState, event: Event, now: float) -> float | None:
    """Averages it without what came before the generation's first report, which a reconfiguration made longer."""
    if state.timed_generation != event.generation:
        return None
    return _averaged(state.steady_seconds, state, event, now) or state.steady_seconds


def _averaged(average: float | None, state: JobState, event: Event, now: float) -> float | None:
    """Returns an average with the steps since the last report; None where there were none, or took no time."""
    steps = (event.get("step") or 0) - state.step
    since = state.timed_from
    if steps <= 0 or since is None or now <= since:
        return None
    seconds = (now - since) / steps
    if average is None:
        return seconds
    weight = 1 - math.exp(-(now - since) / SMOOTHING_SECONDS)
    return average + weight * (seconds - average)


def _speeds(state: JobState, event: Event, steady: float | None) -> Mapping[int, float]:
    ranks = event.get("world_size") or state.world_size
    return {**state.speeds, ranks: 1 / steady} if steady and ranks else state.speeds


def _timed_from(state: JobState, formed: Event, now: float) -> float:
    """Returns from when on steps are timed once a generation has formed: while nobody trained, none took its time."""
    if state.timed_from is None or not state.world_size:
        return now
    return min(now, state.timed_from + (finite(formed.get("pause_seconds")) or 0.0))


def _form(state: JobState, event: Event, now: float) -> JobState:
    members = tuple(event.get("members") or ())
    numbers = {member["member"] for member in members}
    nodes = dict(state.nodes)
    for node in sorted({member["node"] for member in members}):
        own = tuple(member["member"] for member in members if member["node"] == node)
        known = nodes.get(node, NodeState(node, own, "starting"))
        nodes[node] = replace(known, members=own, phase="leaving" if known.phase == "leaving" else "training")
    return replace(
        state,
        last_at=now,
        timed_from=_timed_from(state, event, now),
        waits_for="",
        lacks="",
        world_size=event.get("world_size") or len(members),
        members=members,
        nodes=nodes,
        stragglers={number: told for number, told in state.stragglers.items() if number in numbers},
        silent={number: told for number, told in state.silent.items() if number in numbers},
        generation=event.generation,
        resizes=state.resizes + (state.generation > 0 and event.get("cause") != "start"),
    )


_PHASES = {
    "node_started": "starting",
    "node_warm": "warm",
    "node_requeued": "starting",
    "notice": "leaving",
    "node_left": "left",
    "node_failed": "failed",
    "node_lost": "lost",
}


def pod_after(pod: str, event: Event) -> str:
    """Returns the name of a node's pod after an event of that node; "" where it has none.

    A node that its queue took back has none, unless the event of its next pod came first.
    """
    if event.kind == "node_placed":
        return str(event.get("pod") or "")
    return "" if event.kind == "node_requeued" and event.get("pod") in (None, "", pod) else pod


def _follow_node(state: JobState, event: Event) -> JobState:
    number = event["node"]
    known = state.nodes.get(number, NodeState(number, (), "starting"))
    if event.kind == "node_placed":
        pod = pod_after(known.pod, event)  # a launcher that takes the job over says it again
        after = replace(known, pod=pod, began=known.began if pod == known.pod else state.last_at)
    elif event.kind in _PHASES:
        members = tuple(event.get("members") or known.members)
        after = replace(known, members=members, phase=_PHASES[event.kind], pod=pod_after(known.pod, event))
        if event.kind in ("node_started", "node_requeued"):
            after = replace(after, began=state.last_at)
    else:
        return state
    return replace(state, nodes={**state.nodes, number: after})


def fold(events: Iterable[Event]) -> JobState:
    """Returns the state after all of the events."""
    state = JobState()
    for event in events:
        state = advance(state, event)
    return state
