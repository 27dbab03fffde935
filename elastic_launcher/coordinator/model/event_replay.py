"""Reads from a run's events what a takeover needs besides the members' own reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.events import Event
from elastic_launcher.report.state import pod_after
from elastic_launcher.workdir import Past

TOLD_ONCE = ("node_warm", "node_left", "node_failed", "node_lost", "notice")
"""Kinds that are said once of a node."""
GIVES_MEMBERS = ("node_started", "node_requeued")
"""Kinds that say which members a node has from then on."""
LACKS_NODES = ("nodes_taken", "nodes_wait")
"""Kinds from which on a job waits for nodes, or is about to."""
GOES_ON = ("generation_formed", "quota_lost", "quota_wait")
"""Kinds from which on it does not."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The last generation that formed: its number over all runs, its formation, and its members in rank order."""

    number: int
    formation: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one run of a job, from its events.

    Attributes:
        generation: The last one that formed; None before the first.
        first_node: Number of the run's first node.
        told: What was said of which node, among `TOLD_ONCE`.
        step: Optimizer steps done, by the last event that has them.
        samples: Samples of them.
        shrunk_at: When a hint took a node last, in seconds since the epoch.
        noticed_at: When a notice did.
        members: Of each node that was started, by local rank; of one that its queue took back, those that it got then.
        nodes: The node of each member, of those that it had before too.
        pods: The pod of each node that has one, in a cluster.
        over_quota: The nodes that were made above the job's guarantee.
    """

    generation: Generation | None = None
    first_node: int = 1
    told: frozenset[tuple[str, int]] = frozenset()
    step: int = 0
    samples: int | None = None
    shrunk_at: float | None = None
    noticed_at: float | None = None
    members: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    nodes: Mapping[int, int] = field(default_factory=dict)
    pods: Mapping[int, str] = field(default_factory=dict)
    over_quota: frozenset[int] = frozenset()

    def superseded(self, member: int) -> bool:
        """Returns whether a member was of a pod that its node's queue has taken back."""
        return member in self.nodes and member not in self.members[self.nodes[member]]


@dataclass(frozen=True, slots=True)
class LastHint:
    """The last hint of a job that has begun, which it follows while no hint can be read.

    Attributes:
        nodes: How many it may have; None where it followed none.
        allowed: GPUs that it may hold.
        most_samples: The largest global batch that the job has reported; None if it has not.
    """

    nodes: int | None = None
    allowed: int = 0
    most_samples: int | None = None


def last_hint(events: Sequence[Event], nproc_per_node: int, resumes: bool) -> LastHint | None:
    """Returns what a job followed last, by its events so far; None where it never began.

    The hint is recorded once, and growth that it allows may come later. A generation may also form after a hint that
    allows fewer nodes, where its formation was under way: of that, no more counts than the hint allows.
    """
    if not resumes and not any(event.kind == "generation_formed" for event in events):
        return None
    bounds = (event["bounds"] for event in reversed(events) if event.kind == "step_times")
    most_samples = next((one.get("max_batch_size") for one in bounds), None)
    place = next((at for at in reversed(range(len(events))) if events[at].kind == "hint_applied"), None)
    if place is None:
        return LastHint(most_samples=most_samples)
    told, since = events[place], events[place:]
    target, allowed = told.get("target_nodes"), told.get("allowed") or 0
    if target is None:
        return LastHint(None, allowed, most_samples)
    limit = told.get("limit")
    most = (allowed if limit is None else min(allowed, limit)) // nproc_per_node
    formed = [event.get("nodes") or 0 for event in since if event.kind == "generation_formed"]
    return LastHint(max(target, *(min(nodes, most) for nodes in formed), 0), allowed, most_samples)


def past_after(past: Past, events: Sequence[Event]) -> Past:
    """Returns a past after all events: no number in them is used again."""
    nodes = [event for event in events if event.kind in GIVES_MEMBERS]
    return replace(
        past,
        first_node=max([past.first_node, *(event["node"] + 1 for event in nodes)]),
        first_member=max([past.first_member, *(max(event["members"]) + 1 for event in nodes)]),
        generations=max([past.generations, *(event.generation for event in events)]),
    )


def run_of(events: Sequence[Event]) -> Sequence[Event]:
    """Returns the events of the last run; none where it has ended."""
    starts = [number for number, event in enumerate(events) if event.kind == "job_started"]
    run = events[starts[-1] :] if starts else ()
    return () if any(event.kind == "job_finished" for event in run) else run


def read_record(run: Sequence[Event]) -> Record:
    """Returns the record of a run, from its events."""
    begun = [number for number, event in enumerate(run) if event.kind == "job_started" or _begins_again(event)]
    start = run[begun[-1]] if begun else None
    formed = [event for event in (run[begun[-1] :] if begun else run) if event.kind == "generation_formed"]
    last = formed[-1] if formed else None
    progress = [event for event in run if event.kind == "progress"]
    left = [event for event in run if event.kind == "node_left"]
    shrunk = [event.time for event in left if event.get("cause") == "hint"]
    noticed = [event.time for event in run if event.kind == "notice"]
    noticed += [event.time for event in left if event.get("cause") == "notice"]
    gives = [event for event in run if event.kind in GIVES_MEMBERS]
    given = [(event["node"], tuple(event.get("members") or ())) for event in gives]
    origin = None if start is None else start.get("step" if _begins_again(start) else "resumed_step")
    return Record(
        generation=None
        if last is None
        else Generation(last.generation, last["formation"], tuple(one["member"] for one in last["members"])),
        first_node=min((event["node"] for event in run if event.kind == "node_started"), default=1),
        told=frozenset(_told(run)),
        step=progress[-1]["step"] if progress and last is not None else origin or 0,
        samples=progress[-1].get("samples") if progress else None,
        shrunk_at=max(shrunk, default=None),
        noticed_at=max(noticed, default=None),
        members=dict(given),
        nodes={member: node for node, own in given for member in own},
        pods=_pods(run),
        over_quota=frozenset(event["node"] for event in gives if event.get("over_quota")),
    )


def _told(run: Sequence[Event]) -> set[tuple[str, int]]:
    """Returns the kinds of events of each node; of one that its queue took back, since then."""
    told: set[tuple[str, int]] = set()
    for event in run:
        if event.kind == "node_requeued":
            told -= {(kind, event["node"]) for kind in TOLD_ONCE}
        elif event.kind in TOLD_ONCE:
            told.add((event.kind, event["node"]))
    return told


def _pods(run: Sequence[Event]) -> dict[int, str]:
    pods: dict[int, str] = {}
    for event in run:
        if "node" in event:
            pods[event["node"]] = pod_after(pods.get(event["node"], ""), event)
    return {node: pod for node, pod in pods.items() if pod}


def earlier_wait(run: Sequence[Event], now: float) -> EarlierWait | None:
    """Returns the wait for nodes in which a run's launcher was, or on its way to which; None if it was in none.

    ``now`` is in seconds since the epoch.
    """
    told = next((event for event in reversed(run) if event.kind in (*LACKS_NODES, *GOES_ON)), None)
    if told is None or told.kind in GOES_ON:
        return None
    last = run[-1].time
    seconds = max(0.0, last - told.time) + (told.get("waited") or 0.0)
    cause = told.get("cause") or "" if told.kind == "nodes_wait" else "notice"
    return EarlierWait(str(told.get("reason") or told.get("message") or ""), seconds, cause, max(0.0, now - last))


def _begins_again(event: Event) -> bool:
    """Whether the job restarts there from its last checkpoint, with other nodes, within the same run."""
    return event.kind in ("quota_wait", "nodes_wait") and event.get("step") is not None
