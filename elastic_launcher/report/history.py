"""The history of a job: its events on one axis of seconds since its start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_launcher.events import Event, finite
from elastic_launcher.report.describe import describe
from elastic_launcher.report.state import outcome

Timed = Sequence[tuple[float, Event]]

NOTABLE = (
    "notice",
    "quota_lost",
    "quota_wait",
    "quota_back",
    "nodes_taken",
    "nodes_wait",
    "warning",
    "hint_rejected",
    "hint_missing",
    "node_failed",
    "node_lost",
    "straggler",
    "step_redone",
    "events_gap",
)
"""Kinds that a reader of a report should not miss."""
MARKED = ("node_lost", "node_failed", "notice", "checkpoint_saved", "quota_wait", "nodes_wait")
"""Kinds that charts mark at their moments."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One membership of the job.

    Attributes:
        number: From 1.
        at: When its first step was completed.
        until: When the next one was there, or the end of its run: of one that was killed, the last event.
        world_size: Its ranks.
        nodes: Their nodes, in rank order.
        members: In rank order.
        cause: ``start``, ``hint``, ``notice`` or ``failure``.
        first_step: The first step whose samples are divided among its members.
        pause_seconds: How long the survivors stood still for it.
        samples_per_second: While it trained; None where too little is known.
    """

    number: int
    at: float
    until: float
    world_size: int
    nodes: tuple[int, ...]
    members: tuple[int, ...]
    cause: str
    first_step: int
    pause_seconds: float
    samples_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The numbers of a hint, in GPUs, from a moment on; None for what it does not give."""

    at: float
    guaranteed: int | None
    allowed: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class NodeLife:
    """The life of a node.

    Attributes:
        node: Its number.
        started: When it was started.
        admitted: When it first trained, or None.
        noticed: When it received a termination notice, or None.
        ended: When it left or was lost, or None.
        end: ``left``, ``failed``, ``lost``; empty while it is there.
    """

    node: int
    started: float
    admitted: float | None = None
    noticed: float | None = None
    ended: float | None = None
    end: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened, in one line of words; ``kind`` is the event's."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class History:
    """A job's past. All moments are seconds since its start.

    Attributes:
        started: What ``job_started`` said.
        started_at: In seconds since the epoch.
        finished: What ``job_finished`` said; None while the job runs.
        seconds: How long it is, up to its last event.
        generations: In order.
        quotas: The hint's numbers whenever they changed.
        nodes: In order of their numbers.
        loss: (moment, value) of each report; nan for what is not finite.
        speed: (moment, samples per second) of each report.
        batches: (moment, samples of a step) since the start and from each change on; empty where it never changed.
        adaptive: (moment, value) of each report, by the name of a value of the adaptive batch.
        notes: All that happened, in words.
    """

    started: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    finished: Mapping[str, Any] | None = None
    seconds: float = 0.0
    generations: tuple[Generation, ...] = ()
    quotas: tuple[Quota, ...] = ()
    nodes: tuple[NodeLife, ...] = ()
    loss: tuple[tuple[float, float], ...] = ()
    speed: tuple[tuple[float, float], ...] = ()
    batches: tuple[tuple[float, int], ...] = ()
    adaptive: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def marks(self) -> tuple[Note, ...]:
        """The notes that charts mark."""
        return tuple(note for note in self.notes if note.kind in MARKED)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.started.get("name") or "job")

    @property
    def outcome(self) -> str:
        """``starting``, ``running``, ``finished``, ``stopped`` or ``failed``."""
        if self.finished is None:
            return "running" if self.generations else "starting"
        return outcome(self.finished.get("exit_code"))

    @property
    def notable(self) -> tuple[Note, ...]:
        """The notes that a reader should not miss."""
        return tuple(note for note in self.notes if note.kind in NOTABLE)


def put_on_axis(events: Sequence[Event]) -> Timed:
    """Returns events with their moments, which never run backwards even where the wall clock did."""
    start = next((event for event in events if event.kind == "job_started"), events[0] if events else None)
    if start is None:
        return []
    latest, timed = 0.0, []
    for event in events:
        latest = max(latest, event.time - start.time)
        timed.append((latest, event))
    return timed


def relate(events: Sequence[Event]) -> History:
    """Returns the history of some events."""
    start = next((event for event in events if event.kind == "job_started"), events[0] if events else None)
    if start is None:
        return History()
    timed = put_on_axis(events)
    seconds = timed[-1][0]
    progress = [(at, event) for at, event in timed if event.kind == "progress"]
    ends = [event for event in events if event.kind in ("job_started", "job_finished")]
    finished = [event.fields for event in ends[-1:] if event.kind == "job_finished"]
    return History(
        started=start.fields if start.kind == "job_started" else {},
        started_at=start.time,
        finished=finished[-1] if finished else None,
        seconds=seconds,
        generations=_generations(timed, progress, seconds),
        quotas=_quotas(timed),
        nodes=_nodes(timed),
        loss=tuple((at, _or_nan(event["loss"])) for at, event in progress if event.get("loss") is not None),
        speed=tuple((at, value) for at, event in progress if (value := finite(event.get("samples_per_second")))),
        batches=_batches(timed),
        adaptive=_adaptive(progress),
        notes=tuple(Note(at, event.kind, text) for at, event in timed if (text := describe(event)) is not None),
    )


def _or_nan(value: object) -> float:
    number = finite(value)
    return math.nan if number is None else number


def _generations(
    timed: Sequence[tuple[float, Event]], progress: Sequence[tuple[float, Event]], seconds: float
) -> tuple[Generation, ...]:
    formed = [(at, event) for at, event in timed if event.kind == "generation_formed"]
    ends = _ends(timed, seconds)
    speeds = _speeds(progress)
    return tuple(
        Generation(
            number=event.generation,
            at=at,
            until=until,
            world_size=event.get("world_size") or len(event.get("members") or ()),
            nodes=tuple(dict.fromkeys(member["node"] for member in event.get("members") or ())),
            members=tuple(member["member"] for member in event.get("members") or ()),
            cause=str(event.get("cause") or ""),
            first_step=event.get("first_step") or 0,
            pause_seconds=finite(event.get("pause_seconds")) or 0.0,
            samples_per_second=speeds.get(event.generation),
        )
        for (at, event), until in zip(formed, ends, strict=True)
    )


def _ends(timed: Sequence[tuple[float, Event]], seconds: float) -> list[float]:
    """Returns until when each generation trained: another one followed, or there were no ranks any more."""
    ends: list[float] = []
    trains, before = False, 0.0
    for at, event in timed:
        if event.kind in ("generation_formed", "quota_wait", "nodes_wait", "job_started", "job_finished"):
            if trains:
                ends.append(before if event.kind == "job_started" else at)  # a launcher that was killed says no end
            trains = event.kind == "generation_formed"
        before = at
    return [*ends, seconds] if trains else ends


def _speeds(progress: Sequence[tuple[float, Event]]) -> dict[int, float]:
    """Returns each generation's samples per second, from its first report to its last."""
    spans: dict[int, list[tuple[float, int]]] = {}
    for at, event in progress:
        if event.get("samples"):
            spans.setdefault(event.generation, []).append((at, event["samples"]))
    return {
        generation: (span[-1][1] - span[0][1]) / (span[-1][0] - span[0][0])
        for generation, span in spans.items()
        if span[-1][0] > span[0][0]
    }


def _batches(timed: Timed) -> tuple[tuple[float, int], ...]:
    changes = [(at, event) for at, event in timed if event.kind == "batch_changed"]
    first = [(0.0, int(event["old"])) for _, event in changes[:1]]
    return (*first, *((at, int(event["new"])) for at, event in changes))


def _adaptive(progress: Timed) -> dict[str, tuple[tuple[float, float], ...]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for at, event in progress:
        for name, given in (event.get("adaptive") or {}).items():
            if (value := finite(given)) is not None:
                found.setdefault(name, []).append((at, value))
    return {name: tuple(points) for name, points in found.items()}


def _quotas(timed: Iterable[tuple[float, Event]]) -> tuple[Quota, ...]:
    """Returns the hint's numbers whenever they changed; a mere re-write of the document is no change."""
    found: list[Quota] = []
    for at, event in timed:
        if event.kind == "hint_applied":
            quota = Quota(at, event.get("guaranteed"), event.get("allowed"), event.get("limit"))
            if not found or replace(quota, at=found[-1].at) != found[-1]:
                found.append(quota)
    return tuple(found)


_ENDS = {"node_left": "left", "node_failed": "failed", "node_lost": "lost"}


def _nodes(timed: Iterable[tuple[float, Event]]) -> tuple[NodeLife, ...]:
    lives: dict[int, NodeLife] = {}
    before = 0.0
    for at, event in timed:
        last, before = before, at
        if event.kind == "generation_formed":
            for number in {member["node"] for member in event.get("members") or ()}:
                life = lives.get(number, NodeLife(number, at))
                lives[number] = life if life.admitted is not None else replace(life, admitted=at)
        if event.kind == "job_started":  # another run: the nodes of the one before are gone, however that one ended
            left = {
                number: replace(life, ended=last, end="left") for number, life in lives.items() if life.ended is None
            }
            lives.update(left)
        number = event.get("node")
        if number is None:
            continue
        life = lives.get(number, NodeLife(number, at))
        if event.kind == "notice":
            life = replace(life, noticed=at)
        elif event.kind in _ENDS and life.ended is None:
            life = replace(life, ended=at, end=_ENDS[event.kind])
        lives[number] = life
    return tuple(lives[number] for number in sorted(lives))
