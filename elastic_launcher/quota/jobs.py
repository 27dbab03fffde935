"""Reads what jobs report to the quota controller in their status documents.

Invariant: a job that is returned has whole and finite numbers, ``minimum <= maximum``, and holds nothing once it is
finished; any other report is refused with the field that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert

from elastic_launcher.engines.kubernetes.objects.template import QUOTA_KINDS
from elastic_launcher.hints.document import MAX_GPUS
from elastic_launcher.hints.resolve import SKEW_SECONDS
from elastic_launcher.options import BY_KEY
from elastic_launcher.quota.scheduling import ANYWHERE, Scheduling, scheduling_of
from elastic_launcher.report.status import GONE

T = TypeVar("T")
VERSION = 1
"""Of the status document; in a later one the fields may mean something else."""
_FINISHED = ("finished", "stopped", "failed")
_ENDED_PHASES = ("left", "failed", "lost", "trained", "stopped")
"""Phases of nodes that hold no GPUs any more."""

# the bounds are far beyond what a job has, so that sums of what is accepted stay numbers that make sense
_Gpus = Annotated[int, Meta(ge=0, le=MAX_GPUS)]
_SomeGpus = Annotated[int, Meta(ge=1, le=MAX_GPUS)]
_Priority = Annotated[int, Meta(ge=int(BY_KEY["priority"].least), le=int(BY_KEY["priority"].most))]
_Moment = Annotated[float, Meta(ge=0.0, le=1e11)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
_GpuSeconds = Annotated[float, Meta(ge=0.0, le=1e15)]
_Speed = Annotated[float, Meta(gt=1e-9, le=1e6)]
_Goodput = Annotated[float, Meta(gt=1e-9, le=1e12)]
_Steps = Annotated[int, Meta(ge=0, le=10**15)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Name = Annotated[str, Meta(min_length=1, max_length=1000)]


class ReportError(ValueError):
    """A report that can't be used; the message names the job and the field, and what that must be."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a job reports to the quota controller; all counts are GPUs, all times seconds since the epoch.

    Attributes:
        id: The most specific of its match keys.
        match: What hints are matched by, the id too.
        minimum: Fewest that it runs on.
        maximum: Most that it can use.
        sizes: The counts that it can use, ascending, from the minimum to the maximum.
        priority: Of its project's jobs, higher ones come first.
        submitted_at: When it was first started.
        held: What its nodes hold, or wait for in the cluster.
        following: What the hint that it follows allows; None before the first, or where no entry matched.
        following_generation: Of that hint's document; None before the first, or where that has none.
        waits: Seconds that it would wait for quota, saved; with 0 it ends instead.
        speeds: Steps a second by the number of GPUs, as far as measured.
        goodput: Samples a second by the number of GPUs, each counted for as much as it is worth: measured, or by the
            job's own model. Empty for a job that reports none.
        steps_left: Steps that it still has to do, or None.
        start_seconds: What a node took from its start to its first generation, or None.
        changes: How often hints changed its size.
        service: GPU-seconds that it held so far.
        training_since: When it last began to train after a start or a pause; None while it does not train.
        finished: Whether its launcher has ended; a later attempt reports again.
        reported_at: When it reported all this.
        per_node: GPUs of a node.
        scheduling: Which machines its pods can be on: of nodes within the guarantee, and of those above it
            where that differs.
    """

    id: str
    match: Mapping[str, str]
    minimum: int
    maximum: int
    sizes: tuple[int, ...]
    priority: int
    submitted_at: float
    held: int
    following: int | None
    following_generation: int | None
    waits: float
    speeds: Mapping[int, float]
    steps_left: int | None
    start_seconds: float | None
    changes: int
    service: float
    training_since: float | None
    finished: bool
    reported_at: float
    per_node: int = 1
    goodput: Mapping[int, float] = field(default_factory=dict)
    scheduling: tuple[Scheduling, ...] = (Scheduling(),)

    def usable(self, allowed: int) -> int:
        """Returns what it holds of so many GPUs: its largest size within them, or 0 if they are below its minimum."""
        return max((size for size in self.sizes if size <= allowed), default=0)


class _Following(Struct):
    allowed: _Gpus | None = None
    generation: _Number | None = None


class _SizeGoodput(Struct):
    ranks: _SomeGpus
    goodput: _Goodput
    batch: Annotated[int, Meta(ge=1, le=10**15)]
    measured: bool


class _Demand(Struct):
    minimum: _SomeGpus
    maximum: _SomeGpus
    per_node: _SomeGpus
    match: dict[_Name, _Name]
    submitted: _Moment
    reported: _Moment
    held: _Gpus
    priority: _Priority = 0
    waits: _Seconds | None = None
    following: _Following | None = None
    speeds: dict[_SomeGpus, _Speed] = {}
    goodput: list[_SizeGoodput] = []
    steps_left: _Steps | None = None
    start_seconds: _Seconds | None = None
    changes: _Number = 0
    service: _GpuSeconds = 0.0
    started_training: _Moment | None = None
    scheduling: Any = None


class _Report(Struct):
    state: str
    demand: _Demand


class _Node(Struct):
    phase: str
    members: list[int] = []


class _OldStatus(Struct):
    """The status of a version that reports no demand."""

    job: _Name
    state: str
    started: _Moment
    seconds: _Seconds
    step: _Steps
    name: _Name | None = None
    namespace: _Name | None = None
    told: _Moment | None = None
    total_steps: _Steps | None = None
    hint: _Following | None = None
    nodes: list[_Node] = []


def job_of(status: Mapping[str, Any]) -> Job:
    """Returns what a status document reports.

    A document of a version without ``demand`` has no numbers but those of its nodes. Its job counts as one that can't
    be resized: it needs the GPUs that it holds, or one where it holds none. A job that does not report what its pods
    ask of machines can use each of them.

    Args:
        status: The document, as values from JSON.

    Raises:
        ReportError: If a field is missing, absurd or contradicts another one.
    """
    if not isinstance(status, Mapping):
        raise ReportError(f"the report of a job is {status!r:.60}; it must be a JSON object")
    try:  # reasons and hints repeat parts of it; JSON can escape what no encoding of a file has
        json.dumps(status, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _refusal(status, f"it has the character {error.object[error.start]!r}, which is no text") from error
    version = status.get("v", VERSION)
    if version != VERSION:
        raise _refusal(status, f"it is of version {version!r:.20}, and this controller reads version {VERSION}")
    if status.get("demand") is None:
        return _old_job(status, _converted(status, _OldStatus))
    return _job(status, _converted(status, _Report))


def _refusal(status: Mapping[str, Any], why: str) -> ReportError:
    return ReportError(f"the report of job {status.get('job')!r:.120} can't be used: {why}")


def _converted(status: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return convert(status, kind, str_keys=True)
    except ValidationError as error:
        raise _refusal(status, str(error).replace("`$.", "`")) from error


def _job(status: Mapping[str, Any], report: _Report) -> Job:
    found = report.demand
    goodput = {one.ranks: one.goodput for one in found.goodput}
    finished = report.state in _FINISHED or (report.state == GONE and not found.held)
    for wrong, why in (
        ("id" not in found.match, "demand.match has no id, which the launcher gives each job"),
        (found.minimum > found.maximum, f"demand.minimum is {found.minimum}, above demand.maximum, {found.maximum}"),
        (
            found.minimum % found.per_node or found.maximum % found.per_node,
            f"demand.minimum is {found.minimum} and demand.maximum {found.maximum}: they must be multiples of "
            f"demand.per_node, {found.per_node}",
        ),
        (finished and found.held, f"demand.held is {found.held}, and the job has ended ({report.state})"),
        (
            found.submitted > found.reported + SKEW_SECONDS,
            f"demand.submitted is {found.submitted:.0f}, later than demand.reported, {found.reported:.0f}",
        ),
        (
            (found.started_training or 0.0) > found.reported + SKEW_SECONDS,
            f"demand.started_training is {found.started_training}, later than demand.reported, {found.reported:.0f}",
        ),
        (
            len(goodput) < len(found.goodput),
            f"demand.goodput has {len(found.goodput)} entries for {len(goodput)} sizes; it must have one for each",
        ),
    ):
        if wrong:
            raise _refusal(status, why)
    following = found.following or _Following()
    return Job(
        id=found.match["id"],
        match=found.match,
        minimum=found.minimum,
        maximum=found.maximum,
        sizes=tuple(range(found.minimum, found.maximum + 1, found.per_node)),
        priority=found.priority,
        submitted_at=found.submitted,
        held=found.held,
        following=following.allowed,
        following_generation=following.generation,
        waits=found.waits or 0.0,
        speeds=found.speeds,
        steps_left=found.steps_left,
        start_seconds=found.start_seconds,
        changes=found.changes,
        service=found.service,
        training_since=found.started_training,
        finished=finished,
        reported_at=found.reported,
        per_node=found.per_node,
        goodput=goodput,
        scheduling=_scheduling(found.scheduling),
    )


def _scheduling(found: Any) -> tuple[Scheduling, ...]:
    """Returns what the pods of each kind of nodes ask of machines; of older jobs nothing is known."""
    if not isinstance(found, Mapping):
        return (ANYWHERE if found is None else scheduling_of(found),)
    return tuple(dict.fromkeys(scheduling_of(found.get(kind, {})) for kind in QUOTA_KINDS))


def _old_job(status: Mapping[str, Any], found: _OldStatus) -> Job:
    finished = found.state in (*_FINISHED, GONE)
    held = 0 if finished else sum(len(node.members) for node in found.nodes if node.phase not in _ENDED_PHASES)
    if held > MAX_GPUS:
        raise _refusal(status, f"its nodes have {held} ranks, more than {MAX_GPUS}")
    size = max(1, held)
    reported_at = found.started + found.seconds if found.told is None else found.told
    return Job(
        id=found.job,
        match={"job": found.name or found.job, **({} if found.namespace is None else {"namespace": found.namespace})},
        minimum=size,
        maximum=size,
        sizes=(size,),
        priority=0,
        submitted_at=found.started,
        held=held,
        following=found.hint.allowed if found.hint else None,
        following_generation=None,
        waits=0.0,
        speeds={},
        steps_left=None if found.total_steps is None else max(0, found.total_steps - found.step),
        start_seconds=None,
        changes=0,
        service=0.0,
        training_since=found.started if found.state == "running" else None,
        finished=finished,
        reported_at=reported_at,
        scheduling=(ANYWHERE,),
    )
