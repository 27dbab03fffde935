"""Writes the hints document of a round, and reads back what an earlier controller wrote there.

The document holds the ledger too, so that a controller that starts again goes on from this one object. Entries written
by hand stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from msgspec import ValidationError

from elastic_launcher.hints import Demand, HintError, parse, resolve
from elastic_launcher.hints.document import API_VERSION, MAX_BYTES, MAX_HINTS, Entry, load
from elastic_launcher.hints.match import matches
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.ledger import Ledger, ledger_of
from elastic_launcher.quota.rounds.round import Decision, Grant
from elastic_launcher.quota.rounds.world import Bound, World

KIND = "elastic-quota"
_DIVIDE = "divide the namespaces among several controllers (--namespace)"
_NOTHING: Mapping[str, Any] = {"gpus": {"allowed": 0}}


@dataclass(frozen=True, slots=True)
class Written:
    """What a hints document holds.

    Attributes:
        ledger: The promises that go with it; empty if no controller has written it.
        hints: All entries, word for word; None if there is no document.
        by_hand: The entries of others, word for word.
        defaults: The entry for jobs that nothing matches; None if there is none.
    """

    ledger: Ledger = field(default_factory=Ledger)
    hints: Any = None
    by_hand: tuple[Mapping[str, Any], ...] = ()
    defaults: Mapping[str, Any] | None = None


def read_written(text: str | bytes) -> Written:
    """Reads a hints document of this or an earlier controller, or one that was written by hand.

    Raises:
        HintError: If it can't be used.
    """
    if not text.strip():
        return Written()
    parse(text)
    found = load(text)
    if "apiVersion" not in found:
        raise HintError("the document has the flat form; the controller writes the full one: move its entries, or it")
    source = found.get("source", {})
    ledger = Ledger()
    if source.get("kind") == KIND:
        try:
            ledger = ledger_of(source.get("ledger", {}))
        except ValidationError as error:
            raise HintError(
                f'"ledger" can\'t be read (source.ledger): {error}; remove "source" from the document'
            ) from error
    by_hand = tuple(row for row in found.get("hints", []) if not _is_own(row, ledger.accounts))
    generation = max(ledger.generation, int(found.get("generation") or 0))
    return Written(replace(ledger, generation=generation), found.get("hints"), by_hand, found.get("defaults"))


def _is_own(row: Mapping[str, Any], jobs: Container[str]) -> bool:
    """Returns whether an entry is the controller's, or takes the place of its entry for one of the jobs."""
    match = row.get("match", {})
    return set(match) == {"id"} and match["id"] in jobs and "priority" not in row


def with_entries_by_hand(world: World, rows: Sequence[Mapping[str, Any]], now: float) -> World:
    """Returns the world with what entries written by hand say, as the jobs will follow it.

    An entry fixes a job that follows it rather than the controller's own entry: one that has other keys beside the
    ``id``, that comes first of two alike, or that matches by ``id`` with a priority above 0, which the own entry then
    repeats. Other entries bound the jobs that they match, by their limits.

    Args:
        world: What is there.
        rows: The entries.
        now: Seconds since the epoch.
    """
    names = {job.id for job in world.jobs}
    rows = [row for row in rows if not _is_own(row, names)]
    if not rows:
        return world
    document = parse(json.dumps({"apiVersion": API_VERSION, "hints": rows}))
    fixed, limits = dict(world.fixed), []
    for job in world.jobs:
        repeated = any(
            "id" in entry.match and entry.priority > 0 and matches(entry.match, job.match) for entry in document.entries
        )
        own = () if repeated else (Entry("", {"id": job.id}, job.maximum),)
        demand = Demand(job.match, job.minimum, job.maximum)
        found = resolve(replace(document, entries=(*document.entries, *own)), demand, now=now, starting=False)
        if found.matched:
            fixed[job.id] = job.usable(found.nodes)
        elif found.limit is not None:
            limits.append(Bound(f"the limit written by hand for {job.id}", frozenset({job.id}), found.limit))
    return replace(world, fixed=fixed, bounds=(*world.bounds, *limits))


def hint_document(written: Written, decision: Decision, projects: Projects, *, now: float) -> dict[str, Any]:
    """Returns the document that tells each job what it may hold.

    Of so many jobs that it would be too large, it leaves out those that wait and hold nothing: they go by the defaults,
    they are promised nothing, and the next round finds them by their reports.

    Args:
        written: What was there before.
        decision: The outcome of the round; the generation of its ledger is the document's.
        projects: The projects document.
        now: Seconds since the epoch.

    Raises:
        HintError: If more jobs have GPUs than a document has entries.
    """
    ledger, grants = decision.ledger, decision.grants
    written = replace(written, by_hand=tuple(row for row in written.by_hand if not _is_own(row, ledger.accounts)))
    document = _document(written, ledger, grants, projects, now)
    if _size(_short(document)) <= MAX_BYTES:
        return document
    since = now - projects.grow_after
    promised = {
        name: account
        for name, account in ledger.accounts.items()
        if account.allowed or account.committed or account.was_paused(since)
    }
    grants = tuple(grant for grant in grants if grant.job in promised)
    return _document(written, replace(ledger, accounts=promised), grants, projects, now)


def _document(
    written: Written, ledger: Ledger, grants: Sequence[Grant], projects: Projects, now: float
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "generation": ledger.generation,
        "observedAt": _moment(now),
        "ttlSeconds": projects.ttl_seconds,
        "source": {"kind": KIND, "ledger": ledger.as_json()},
        "defaults": _defaults(written, projects),
        "hints": [*written.by_hand, *map(_entry, _told(written, grants))],
    }


def text_of(document: Mapping[str, Any]) -> str:
    """Returns a document as it is written: for people, unless it would be too large.

    Raises:
        HintError: If it is too large all the same.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if _size(text) > MAX_BYTES:
        text = _short(document)
    if _size(text) > MAX_BYTES:
        raise HintError(f"the hints would have {_size(text)} bytes, and a document has {MAX_BYTES} at most; {_DIVIDE}")
    return text


def _short(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"


def _size(text: str) -> int:
    return len(text.encode())


def _told(written: Written, grants: Sequence[Grant]) -> Sequence[Grant]:
    """Returns what gets an entry: where there are too many, jobs that wait go by the defaults, which say the same."""
    most = MAX_HINTS - len(written.by_hand)
    if len(grants) <= most:
        return grants
    holding = [grant for grant in grants if grant.allowed or grant.holds]
    if len(holding) > most:
        raise HintError(f"{len(holding)} jobs have GPUs, and a document has {MAX_HINTS} entries at most; {_DIVIDE}")
    waiting = [grant for grant in grants if not grant.allowed and not grant.holds]
    return sorted(holding + waiting[: most - len(holding)], key=lambda grant: grant.job)


def _defaults(written: Written, projects: Projects) -> dict[str, Any]:
    """Returns the entry for jobs that no round has seen yet: they hold nothing, and wait for their first hint."""
    others = {key: value for key, value in (written.defaults or _NOTHING).items() if key != "waitSeconds"}
    if others != _NOTHING:
        return dict(written.defaults or {})
    waits = (project.wait_seconds for project in projects.projects)  # their project is not known yet
    return {**_NOTHING, "waitSeconds": max(waits, default=projects.wait_seconds)}


def _entry(grant: Grant) -> dict[str, Any]:
    numbers = {"guaranteed": grant.guaranteed, "allowed": grant.allowed}
    entry: dict[str, Any] = {"match": {"id": grant.job}, "gpus": numbers, "growAfterSeconds": 0}
    entry["waitSeconds"] = grant.wait_seconds
    if grant.reclaim_by is not None and grant.holds > grant.allowed:
        numbers["allowed"] = grant.holds
        entry["reclaim"] = {"to": grant.allowed, "by": _moment(grant.reclaim_by), "reason": grant.reason}
    if grant.leave and grant.allowed:
        entry["leave"] = list(grant.leave)
    if grant.limit is not None:
        numbers["limit"] = max(grant.limit, numbers["allowed"])
    return entry


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
