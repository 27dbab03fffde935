"""Resolves how many nodes a job may have now, from a hints document and the job's demand.

Invariants: the nodes' GPUs are never more than allowed, nor than the limit; more allowed is never fewer nodes; the
answer is 0 or within the job's minimum and maximum; a stale document never says 0 to a job that runs, which keeps its
minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from elastic_launcher.hints.document import DEFAULT_GROW_AFTER, Document, Entry
from elastic_launcher.hints.match import matches, specificity, spelled

SKEW_SECONDS = 60.0  # a clock further ahead than this is wrong, and its time is taken as now


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a job.

    Attributes:
        match: Its namespace, project, queue, pipeline, name and id, as far as known.
        min_nodes: Fewest nodes that it runs on.
        max_nodes: Most nodes that it can use.
        nproc_per_node: Ranks (GPUs) of each node.
        global_batch_size: Most samples of a step, where known: there are no more ranks, but for the minimum of nodes.
        share: (i, n) for the i-th of n equal parts of what is matched, i from 1.
    """

    match: Mapping[str, str]
    min_nodes: int
    max_nodes: int
    nproc_per_node: int = 1
    global_batch_size: int | None = None
    share: tuple[int, int] | None = None

    @property
    def most_nodes(self) -> int:
        """The most nodes that have something to do."""
        if self.global_batch_size is None:
            return self.max_nodes
        return min(self.max_nodes, max(self.min_nodes, self.global_batch_size // self.nproc_per_node))


def most_samples(first: int | None, most: int | None, reported: int | None) -> int | None:
    """Returns the most samples that a step of a job may have; None where its options don't say how many it has.

    A batch that adapts grows with the ranks, so its maximum counts, and not the present batch.

    Args:
        first: The global batch with which it begins, by its options.
        most: The largest one, by its options.
        reported: The largest one, by what the job has told since it trains.
    """
    return None if first is None else max(first, most or reported or first)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The numbers of a document for one job.

    Attributes:
        nodes: How many it may have; 0 when that is fewer than its minimum.
        guaranteed: GPUs that nobody takes back, or None.
        allowed: GPUs that it may hold now, or None where nothing matched.
        limit: GPUs that it never exceeds, or None.
        matched: Path of the entry that won; empty where nothing matched.
        stale: Whether the document is too old to grow by.
        grow_after: Seconds that growth waits after a shrink, a notice or a loss.
        why: How this came about, line by line.
        reclaim_by: When what is taken back may be gone, in seconds since the epoch, or None.
        wait: Seconds that the job waits for quota where its user has not said it, or None.
        leave: Numbers of the nodes that go first when the job shrinks.
    """

    nodes: int
    guaranteed: int | None
    allowed: int | None
    limit: int | None
    matched: str
    stale: bool
    grow_after: float
    why: tuple[str, ...]
    reclaim_by: float | None = None
    wait: float | None = None
    leave: frozenset[int] = frozenset()

    def wanted(self, current: int) -> int:
        """Returns the nodes that a job should have that runs on ``current`` of them; 0 when it has to end.

        A stale document never raises; where nothing matches any more, the job keeps what it has.
        """
        if not self.matched:
            return current
        return min(self.nodes, current) if self.stale else self.nodes


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The GPUs of a job, before they are divided into nodes."""

    guaranteed: int | None
    allowed: int
    limit: int | None


def resolve(document: Document, demand: Demand, *, now: float, starting: bool) -> Resolution:
    """Returns what a document means for a job.

    Args:
        document: The hints.
        demand: The job.
        now: Seconds since the epoch.
        starting: Whether the job holds nothing yet: then a stale document gives only what is guaranteed.
    """
    matching = _ranked(entry for entry in document.entries if matches(entry.match, demand.match))
    winner = matching[0] if matching else document.defaults
    if winner is None:
        why = ("no entry matches and there are no defaults: the job's minimum",)
        return Resolution(demand.min_nodes, None, None, None, "", is_stale(document, now), DEFAULT_GROW_AFTER, why)
    others = matching[1:]
    numbers, why_numbers = _numbers(winner, others, demand.share)
    stale = is_stale(document, now)
    nodes, why_nodes = _nodes(winner, numbers, demand, stale, starting)
    return Resolution(
        nodes,
        numbers.guaranteed,
        numbers.allowed,
        numbers.limit,
        winner.path,
        stale,
        winner.grow_after,
        (_why_winner(winner, others), *why_numbers, *why_nodes),
        winner.reclaim_by if _reclaims(winner) else None,
        _wait(matching, document.defaults),
        winner.leave,
    )


def _ranked(matching: Iterable[Entry]) -> list[Entry]:
    """Returns the most specific entry first; of equal ones that of the highest priority, and then the first."""
    return sorted(matching, key=lambda entry: (specificity(entry.match), entry.priority), reverse=True)


def _wait(ranked: Sequence[Entry], defaults: Entry | None) -> float | None:
    """Returns the waiting time of the first entry that names one; who writes only a size leaves it as it is."""
    named = (entry.wait for entry in (*ranked, defaults) if entry is not None)
    return next((wait for wait in named if wait is not None), None)


def _why_winner(winner: Entry, others: Sequence[Entry]) -> str:
    if winner.path in ("default", "defaults"):
        return f"no entry matches: taken from {winner.path}"
    if not others:
        return f"{winner.path} ({spelled(winner.match)}) is the only entry that matches"
    rivals = [entry for entry in others if specificity(entry.match) == specificity(winner.match)]
    why = "the most specific"
    if rivals:
        highest = max(entry.priority for entry in rivals)
        why = f"of the highest priority, {winner.priority}" if winner.priority > highest else "the first of equals"
    return f"{winner.path} ({spelled(winner.match)}) wins over {_listed(others)}: it is {why}"


def _listed(entries: Sequence[Entry]) -> str:
    shown = ", ".join(f"{entry.path} ({spelled(entry.match)})" for entry in entries[:3])
    return shown if len(entries) <= 3 else f"{shown} and {len(entries) - 3} more"


def _reclaims(entry: Entry) -> bool:
    return entry.reclaim_to is not None and entry.reclaim_to < entry.allowed


def _numbers(winner: Entry, others: Sequence[Entry], share: tuple[int, int] | None) -> tuple[_Numbers, tuple[str, ...]]:
    """Returns the numbers of an entry after reclaim, share and the limits of all that match."""
    why: list[str] = []
    guaranteed, allowed, limit = winner.guaranteed, winner.allowed, winner.limit
    if winner.reclaim_to is not None and _reclaims(winner):
        allowed = winner.reclaim_to
        by = "" if winner.reclaim_by is None else f", by {datetime.fromtimestamp(winner.reclaim_by, UTC).isoformat()}"
        why.append(f"GPUs are being reclaimed: {allowed} of {winner.allowed} are to be left{by}")
    if share is not None:
        whole, unit = allowed, winner.gpus_per_node
        allowed = divide(allowed, share, unit)
        guaranteed = None if guaranteed is None else divide(guaranteed, share, unit)
        limit = None if limit is None else divide(limit, share, unit)
        why.append(f"part {share[0]} of {share[1]} of {_gpus(whole)} is {allowed}")
    for entry in others:
        if entry.limit is not None and (limit is None or entry.limit < limit):
            limit = entry.limit
            why.append(f"the limit is that of {entry.path}: {_gpus(limit)}")
    if limit is not None and limit < allowed:
        why.append(f"{_gpus(allowed)} would be above the limit, {limit}")
        allowed = limit
    if guaranteed is not None:
        guaranteed = min(guaranteed, allowed)
    return _Numbers(guaranteed, allowed, limit), tuple(why)


def divide(gpus: int, share: tuple[int, int], unit: int = 1) -> int:
    """Returns the i-th of n parts, filled like communicating vessels: by one unit at most, the first are larger.

    Args:
        gpus: What is divided.
        share: (i, n), i from 1.
        unit: What is not divided, the GPUs of a machine; what is left of the last one is nobody's.
    """
    number, parts = share
    least, larger = divmod(gpus // unit, parts)
    return unit * (least + (number <= larger))


def _nodes(entry: Entry, numbers: _Numbers, demand: Demand, stale: bool, starting: bool) -> tuple[int, tuple[str, ...]]:
    nodes = legal_nodes(numbers.allowed, entry, demand)
    why = [_why_nodes(nodes, numbers.allowed, entry, demand)]
    if stale and starting:
        sure = demand.min_nodes if numbers.guaranteed is None else legal_nodes(numbers.guaranteed, entry, demand)
        source = (
            "the job's minimum" if numbers.guaranteed is None else f"what is guaranteed, {_gpus(numbers.guaranteed)}"
        )
        why.append(f"the document is stale: a job starts with {source}, and does not grow by it")
        nodes = min(nodes, sure)
    elif stale:
        why.append("the document is stale: a job shrinks by it, to its minimum at the least, and does not grow")
        nodes = max(nodes, demand.min_nodes)
    return nodes, tuple(why)


def legal_nodes(gpus: int, entry: Entry, demand: Demand) -> int:
    """Returns the nodes that so many GPUs make, within the job's bounds; 0 if that is fewer than its minimum."""
    nodes = usable_gpus(gpus, entry, demand) // demand.nproc_per_node
    return nodes if nodes >= demand.min_nodes else 0


def usable_gpus(gpus: int, entry: Entry, demand: Demand) -> int:
    """Returns the largest legal number up to what is given and what the job can use."""
    bound = min(gpus, demand.most_nodes * demand.nproc_per_node)
    if not entry.sizes:
        return bound - bound % entry.gpus_per_node
    return max((size for size in entry.sizes if size <= bound and size % entry.gpus_per_node == 0), default=0)


def _why_nodes(nodes: int, allowed: int, entry: Entry, demand: Demand) -> str:
    usable, process_count = usable_gpus(allowed, entry, demand), demand.nproc_per_node
    rules = []
    if demand.most_nodes * process_count < allowed:
        most = f"the job has {demand.max_nodes} nodes at most"
        rules.append(
            most if demand.most_nodes == demand.max_nodes else f"a step has {demand.global_batch_size} samples at most"
        )
    if entry.sizes:
        rules.append(f"sizes are {', '.join(map(str, entry.sizes))}")
    if entry.gpus_per_node > 1:
        rules.append(f"gpusPerNode is {entry.gpus_per_node}")
    used = f", {usable} used ({'; '.join(rules)})" if rules else ""
    if nodes:
        return f"{_gpus(allowed)} allowed{used}: {_many(nodes, 'node')} of {process_count}"
    least = f"{_many(demand.min_nodes, 'node')} of {process_count}"
    return f"{_gpus(allowed)} allowed{used}: fewer than the job's minimum, {least}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _gpus(count: int) -> str:
    return _many(count, "GPU")


def is_stale(document: Document, now: float) -> bool:
    """Returns whether a document's numbers have expired."""
    if document.observed_at is None or document.ttl_seconds is None:
        return False
    return now - document.observed_at > document.ttl_seconds


def skewed(document: Document, now: float) -> bool:
    """Returns whether a document comes from a clock that is ahead."""
    return document.observed_at is not None and document.observed_at - now > SKEW_SECONDS
