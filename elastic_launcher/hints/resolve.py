"""How many nodes a job may have now: from a hints document and what is known of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from elastic_launcher.hints.document import DEFAULT_GROW_AFTER, MATCH_KEYS, Document, Entry

SKEW_SECONDS = 60.0  # a clock further ahead than this is wrong, and its time is taken as now


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks for.

    Attributes:
        match: Its namespace, queue, pipeline and name, as far as known.
        min_nodes: Fewest nodes that it runs on.
        max_nodes: Most nodes that it can use.
        nproc_per_node: Ranks (GPUs) of each node.
        global_batch_size: Samples of a step, where known: there are never more ranks.
        share: (i, n) for the i-th of n equal parts of what is matched, i from 1.
    """

    match: Mapping[str, str]
    min_nodes: int
    max_nodes: int
    nproc_per_node: int = 1
    global_batch_size: int | None = None
    share: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a document means for a job.

    Attributes:
        nodes: How many it may have; 0 when that is fewer than its minimum.
        guaranteed: GPUs that nobody takes back, or None.
        allowed: GPUs that it may hold now, or None where nothing matched.
        limit: GPUs that it never exceeds, or None.
        matched: Path of the entry that won; empty where nothing matched.
        stale: Whether the document is too old to grow by.
        grow_after: Seconds that growth waits after a shrink, a notice or a loss.
        why: How this came about, line by line.
    """

    nodes: int
    guaranteed: int | None
    allowed: int | None
    limit: int | None
    matched: str
    stale: bool
    grow_after: float
    why: tuple[str, ...]


def _matches(entry: Entry, match: Mapping[str, str]) -> bool:
    return all(fnmatchcase(match.get(key, ""), pattern) for key, pattern in entry.match.items())


def _specificity(entry: Entry) -> tuple[bool, ...]:
    """Ranks by the most specific key that an entry names; a bare ``*`` names nothing."""
    return tuple(entry.match.get(key, "*") != "*" for key in reversed(MATCH_KEYS))


def _part(total: int, share: tuple[int, int]) -> int:
    """Returns one of n parts that differ by at most one, larger ones first."""
    number, parts = share
    return total // parts + (number <= total % parts)


def legal_nodes(gpus: int, entry: Entry, demand: Demand) -> int:
    """Returns the nodes that so many GPUs make: rounded down to sizes, whole machines and whole nodes."""
    usable = min(gpus, demand.max_nodes * demand.nproc_per_node)
    if entry.sizes:
        usable = max((size for size in entry.sizes if size <= usable), default=0)
    usable -= usable % entry.gpus_per_node
    nodes = usable // demand.nproc_per_node
    if demand.global_batch_size is not None:
        nodes = min(nodes, max(1, demand.global_batch_size // demand.nproc_per_node))
    return nodes if nodes >= demand.min_nodes else 0


def resolve(document: Document, demand: Demand, *, now: float, starting: bool) -> Resolution:
    """Returns what a document means for a job.

    Args:
        document: The hints.
        demand: The job.
        now: Seconds since the epoch.
        starting: Whether the job holds nothing yet: then a stale document gives only what is guaranteed.
    """
    why: list[str] = []
    matching = [entry for entry in document.entries if _matches(entry, demand.match)]
    order = {id(entry): number for number, entry in enumerate(matching)}
    winner = max(matching, key=lambda e: (_specificity(e), e.priority, -order[id(e)]), default=document.defaults)
    if winner is None:
        return Resolution(
            demand.min_nodes, None, None, None, "", False, DEFAULT_GROW_AFTER, ("nothing matches: the minimum",)
        )
    why.append(f"{winner.path} matches best" if matching else "nothing matches but the defaults")
    everyone = [*matching, *([document.defaults] if document.defaults is not None else [])]
    limits = [entry.limit for entry in everyone if entry.limit is not None]
    guaranteed, allowed, limit = winner.guaranteed, winner.allowed, min(limits) if limits else None
    if winner.reclaim_to is not None and winner.reclaim_to < allowed:
        allowed = winner.reclaim_to
        why.append(f"{allowed} are to be left after a reclaim")
    if demand.share is not None:
        allowed = _part(allowed, demand.share)
        guaranteed = None if guaranteed is None else _part(guaranteed, demand.share)
        limit = None if limit is None else _part(limit, demand.share)
        why.append(f"part {demand.share[0]} of {demand.share[1]}: {allowed}")
    if limit is not None and allowed > limit:
        allowed = limit
        why.append(f"limit {limit}")
    guaranteed = None if guaranteed is None else min(guaranteed, allowed)
    stale = _is_stale(document, now)
    nodes = legal_nodes(allowed, winner, demand)
    if stale:
        why.append("the document is stale: no growth")
        if starting:
            sure = legal_nodes(guaranteed, winner, demand) if guaranteed is not None else demand.min_nodes
            nodes = min(nodes, sure)
        else:
            nodes = max(nodes, demand.min_nodes) if allowed else demand.min_nodes
    why.append(f"{allowed} GPUs allowed make {nodes} nodes" if nodes else f"{allowed} GPUs are fewer than the minimum")
    return Resolution(nodes, guaranteed, allowed, limit, winner.path, stale, winner.grow_after, tuple(why))


def _is_stale(document: Document, now: float) -> bool:
    if document.observed_at is None or document.ttl_seconds is None:
        return False
    return now - document.observed_at > document.ttl_seconds


def skewed(document: Document, now: float) -> bool:
    """Says whether a document comes from a clock that is ahead."""
    return document.observed_at is not None and document.observed_at - now > SKEW_SECONDS
