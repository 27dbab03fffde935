"""Finds ranks that wait for each other in vain, and the rank that keeps the others waiting.

Invariant: ranks are apart only if every one of them waits, they do not all wait in one kind of operation, and each has
reported its wait more than once, over a long time. The rank that keeps others waiting does not wait itself, and is not
in their operation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from elastic_launcher.control.vitals import Vitals

FEWEST_REPORTS = 2  # of the same wait: one rank's wait may be over when another rank's report comes


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of one rank for its peers, as the rank reports it.

    Attributes:
        turn: Its number, on that rank.
        doing: In which operation.
        since: When the rank reported it first.
        reports: How often the rank has reported it.
        outside: Whether it is in a collective operation of the script's own.
        meets: The kind of operation in which its peers take part, where they may report another one than ``doing``.
    """

    turn: int
    doing: str
    since: float
    reports: int = 1
    outside: bool = False
    meets: str = ""

    @property
    def where(self) -> str:
        """The kind of operation in which it waits, and which its peers have to come to."""
        return self.meets or self.doing


def follow(before: Wait | None, vitals: Vitals, now: float) -> Wait | None:
    """Returns the wait that a rank reports, after its last one, at ``now`` (monotonic); None if it does not wait."""
    if not vitals.turn:
        return None
    if before is not None and (before.turn, before.doing) == (vitals.turn, vitals.doing):
        return replace(before, reports=before.reports + 1)
    return Wait(vitals.turn, vitals.doing, now, outside=vitals.outside > 0, meets=vitals.meets)


def are_apart(waits: Collection[Wait | None], now: float, patience: float, longest: float) -> bool:
    """Whether ranks wait for each other in different operations, so that none of them gets any further.

    Args:
        waits: Of all ranks that live; None for one that does not wait.
        now: Monotonic seconds.
        patience: Least seconds since the first report of each wait.
        longest: The same for one in an operation of the script's own, which others than ranks may end.
    """
    known = [one for one in waits if one is not None]
    settled = all(
        one.reports >= FEWEST_REPORTS and now - one.since >= (longest if one.outside else patience) for one in known
    )
    return len(known) == len(waits) and settled and len({one.where for one in known}) > 1


@dataclass(frozen=True, slots=True)
class Awaited:
    """One rank, ``member``, keeps others waiting; of these, the ``waiter`` has waited longest."""

    waiter: int
    member: int


def find_awaited(vitals: Mapping[int, Vitals], long: float) -> Awaited | None:
    """Returns the rank of a group that has kept others waiting for ``long`` seconds; None if there is none."""
    waiter = max(vitals, key=lambda number: vitals[number].waits, default=None)
    if waiter is None or vitals[waiter].waits < long:
        return None
    where = vitals[waiter].doing
    others = {number: one for number, one in vitals.items() if not one.waits and one.doing not in ("", where)}
    member = max(others, key=lambda number: others[number].busy, default=None)
    return None if member is None else Awaited(waiter, member)
