"""Accounts for a job's time: every instant was productive, was lost to one cause, or lies outside the training.

Invariant: what counted, what was lost by each cause and what was idle add up to the time from first to last event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastic_launcher.config import ExitCode
from elastic_launcher.events import Event, finite
from elastic_launcher.report.history import Timed, put_on_axis

CAUSES = ("start", "grow", "shrink", "notice", "failure", "checkpoint", "quota", "nodes", "coordinator")
"""The causes of lost time, in the order in which they are reported."""
IDLE = "idle"
WORK = ("progress", "generation_formed", "step_redone", "log")
"""Kinds that only a job writes which trains."""
STANDS_ABOVE = ("quota", IDLE, "start", "coordinator", "failure", "nodes", "notice", "shrink", "grow", "checkpoint")
"""What an instant counts as to which several of these apply: the first of them."""

Span = tuple[float, float, str]
"""From when to when time went to what."""


NAMES = {
    "counted": "steps that counted",
    "start": "start: until the first step",
    "grow": "growing",
    "shrink": "shrinking",
    "notice": "notices",
    "failure": "failures, and steps done in vain",
    "checkpoint": "waiting for checkpoints",
    "quota": "waiting for quota",
    "nodes": "waiting for nodes",
    "coordinator": "the launcher being away",
    IDLE: "after the training, and between runs",
}
"""What people call it."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The account of a job's time, in seconds.

    Attributes:
        counted: In steps that counted, evaluations between them included.
        idle: Between runs of the job, and after its training.
        lost: By cause, each of `CAUSES`.
    """

    counted: float
    idle: float
    lost: dict[str, float]

    @property
    def total(self) -> float:
        """From the first event to the last."""
        return self.counted + self.idle + sum(self.lost.values())

    @property
    def goodput(self) -> float:
        """The share that counted, from 0 to 1."""
        return self.counted / self.total if self.total > 0 else 0.0


def balance(events: Sequence[Event]) -> Balance:
    """Returns the account of a job's time, by its events."""
    timed = put_on_axis(events)
    end = timed[-1][0] if timed else 0.0
    spent = _paint(end, [*_runs(timed), *_pauses(timed), *_without_quota(timed), *_without_nodes(timed)])
    return Balance(spent["counted"], spent[IDLE], {cause: spent[cause] for cause in CAUSES})


def _paint(end: float, spans: Sequence[Span]) -> dict[str, float]:
    """Returns the seconds of each kind up to ``end``, where each instant is of one kind only."""
    clipped = [(max(0.0, start), min(stop, end), kind) for start, stop, kind in spans]
    changes = [(start, kind, 1) for start, stop, kind in clipped if stop > start]
    changes += [(stop, kind, -1) for start, stop, kind in clipped if stop > start]
    changes.sort()
    spent = dict.fromkeys(("counted", IDLE, *CAUSES), 0.0)
    there: Counter[str] = Counter()
    before = 0.0
    for at, kind, change in [*changes, (end, "", 0)]:
        spent[next((one for one in STANDS_ABOVE if there[one]), "counted")] += at - before
        there[kind] += change
        before = at
    return spent


def _runs(timed: Timed) -> Iterator[Span]:
    """Yields what no run of the job could help: its start, its end, the time between two, and what was done in vain."""
    starts = [place for place, (_, event) in enumerate(timed) if event.kind == "job_started"]
    for first, after in pairwise([*(starts or [0]), len(timed)]):
        run = timed[first:after]
        if not run:
            continue
        formed = next((at for at, event in run if event.kind == "generation_formed"), run[-1][0])
        yield run[0][0], formed, "start"
        yield from _begins_again(run)
        yield from _restarts(run)
        last_at, last = run[-1]
        told = any(event.kind == "progress" for _, event in run)  # scripts without our library tell of no steps
        worked = max((at for at, event in run if event.kind in WORK), default=formed) if told else last_at
        if last.kind == "job_finished":
            failed = last.get("exit_code") in (ExitCode.SCRIPT_FAILED, ExitCode.LAUNCHER_FAILED)
            yield worked, last_at, "failure" if failed else IDLE
        if after < len(timed):
            again_at, again = timed[after]
            yield last_at, again_at, IDLE if last.kind == "job_finished" else "coordinator"
            in_vain = "coordinator" if last.kind != "job_finished" else "failure"
            yield _done_at(timed[:after], again.get("resumed_step") or 0), last_at, in_vain


def _begins_again(run: Timed) -> Iterator[Span]:
    """Yields from when nodes were started again, after a wait for quota, to when they trained."""
    since: float | None = None
    for at, event in run:
        if event.kind == "quota_back":
            since = at
        elif event.kind in ("generation_formed", "quota_lost", "job_finished") and since is not None:
            yield since, at, "start"
            since = None
    if since is not None:
        yield since, run[-1][0], "start"


def _restarts(run: Timed) -> Iterator[Span]:
    """Yields the work lost where no member of a generation was left, and the next resumed from a checkpoint."""
    before: set[int] = set()
    for place, (at, event) in enumerate(run):
        if event.kind != "generation_formed":
            continue
        members = {one["member"] for one in event.get("members") or ()}
        first_step = event.get("first_step")
        if event.get("cause") == "failure" and before and not before & members and first_step is not None:
            yield _done_at(run[:place], first_step), at, "failure"
        before = members


def _done_at(timed: Timed, step: int) -> float:
    """Returns when a step was done that others went on from: all that was done after it was in vain."""
    for at, event in reversed(timed):
        if event.kind == "checkpoint_saved" and event.get("step") == step:
            return at - (finite(event.get("seconds")) or 0.0)
    before = [at for at, event in timed if event.kind == "progress" and (event.get("step") or 0) <= step]
    formed = (at for at, event in timed if event.kind == "generation_formed")
    return max(before, default=next(formed, timed[-1][0] if timed else 0.0))


def _pauses(timed: Timed) -> Iterator[Span]:
    """Yields how long the training stood still for another membership, or for a checkpoint."""
    for at, event in timed:
        if event.kind == "generation_formed":
            yield at - (finite(event.get("pause_seconds")) or 0.0), at, _cause(event)
        elif event.kind == "checkpoint_saved":
            began = at - (finite(event.get("seconds")) or 0.0)
            yield began, began + (finite(event.get("held_seconds")) or 0.0), "checkpoint"


def _cause(formed: Event) -> str:
    cause = formed.get("cause")
    if cause in ("notice", "failure"):
        return str(cause)
    return "shrink" if formed.get("left") else "grow"


def _without_quota(timed: Timed) -> Iterator[Span]:
    """Yields from the last step that was saved, or from the start of the wait, to when quota was there again."""
    since: float | None = None
    trained = False
    for place, (at, event) in enumerate(timed):
        if event.kind in ("quota_lost", "quota_wait") and since is None:
            since = at
        elif event.kind in ("quota_back", "job_finished", "job_started"):
            if since is not None:
                back = event.kind == "quota_back" and trained
                yield (_done_at(timed[:place], event.get("step") or 0) if back else since), at, "quota"
            since, trained = None, False
        trained = trained or event.kind == "generation_formed"
    if since is not None:
        yield since, timed[-1][0], "quota"


def _without_nodes(timed: Timed) -> Iterator[Span]:
    """Yields from the last step that was saved before nodes were waited for to when others trained."""
    since: float | None = None
    for place, (at, event) in enumerate(timed):
        if event.kind == "nodes_wait" and since is None:
            since = at if event.get("step") is None else min(at, _done_at(timed[:place], event["step"]))
        elif event.kind in ("generation_formed", "quota_lost", "job_finished", "job_started") and since is not None:
            yield since, at, "nodes"
            since = None
    if since is not None:
        yield since, timed[-1][0], "nodes"
