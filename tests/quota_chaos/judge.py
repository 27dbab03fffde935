"""What must hold after each round of the quota controller, whatever has happened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds.ledger import Account, Ledger, ledger_of
from elastic_launcher.quota.rounds.round import Change, Decision, Grant
from tests.quota_chaos.players import Player

EXCUSED = ("guarantee", "capacity", "limit", "hand")
"""Causes for which a job may shrink soon after it grew, and the other way round."""


@dataclass(frozen=True)
class View:
    """What there is after a round. All counts are GPUs.

    Attributes:
        text: The hints document.
        projects: The projects document that is in force.
        gpus: GPUs that there are.
        pods: What pods that are not elastic hold, by project.
        players: The jobs.
        by_hand: Jobs with an entry written by hand.
    """

    text: str
    projects: Projects
    gpus: int
    pods: Mapping[str, int]
    players: Mapping[str, Player]
    by_hand: frozenset[str]

    @cached_property
    def ledger(self) -> Ledger:
        """The controller's ledger."""
        return ledger_of(json.loads(self.text).get("source", {}).get("ledger", {}))

    def room(self, project: str) -> int:
        """Returns how many more GPUs a project may be promised; below 0 where it has too many."""
        accounts = self.ledger.accounts
        rooms = [self.gpus - self._used(accounts, [one.name for one in self.projects.projects])]
        for above in self.projects.path(project):
            if above.limit is not None:
                below = [one.name for one in self.projects.projects if above in self.projects.path(one.name)]
                rooms.append(above.limit - self._used(accounts, below))
        return min(rooms)

    def _used(self, accounts: Mapping[str, Account], projects: Sequence[str]) -> int:
        committed = sum(one.committed for one in accounts.values() if one.project in projects)
        return committed + sum(self.pods.get(name, 0) for name in projects)


@dataclass
class Judge:
    """Compares each round with the one before it.

    Attributes:
        accounts: The accounts after the last round.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def promises(self, view: View) -> None:
        """Checks the hints: no GPU is promised twice, and each number is one that the job can use."""
        accounts = view.ledger.accounts
        for name, account in accounts.items():
            before = self.accounts.get(name)
            if account.allowed > (before.allowed if before else 0) and account.outstanding > account.held:
                room = view.room(account.project)
                assert room >= 0, f"{name} was allowed {account.allowed}, {-room} GPUs more than there are for it"
        for row in json.loads(view.text)["hints"]:
            player = view.players.get(row["match"].get("id", ""))
            if player is not None and not row.get("priority"):
                gpus = row.get("reclaim", {}).get("to", row["gpus"]["allowed"])
                assert gpus in (0, *player.sizes), f"{player.name} is hinted {gpus}, and can use {player.sizes}"
        self.accounts = accounts

    def apart(self, changes: Sequence[Change], projects: Projects, now: float) -> None:
        """Checks that growth and shrink of a job are a set time apart, except for guarantees."""
        for change in changes:
            sign = 1 if change.after > change.before else -1
            when, before = self._last.get(change.job, (-1e9, sign))
            if before != sign and change.cause not in EXCUSED:
                assert now - when >= projects.grow_after, f"{now - when:g} s after the last change: {change}"
            self._last[change.job] = now, sign


def at_rest(view: View, decision: Decision) -> None:
    """Checks what must be so once nothing has happened for long: guarantees are met, and no GPU idles."""
    for name in sorted(decision.ledger.accounts):
        player = view.players.get(name)
        if player is None or name in view.by_hand:
            continue
        account = decision.ledger.accounts[name]
        if account.overdue:
            continue
        project = view.projects.named(account.project)
        step = min((size for size in player.sizes if size > account.allowed), default=0) - account.allowed
        if step <= 0:
            continue
        if project.weight:
            room = view.room(project.name)
            assert step > room, f"{name} could have {step} of the {room} GPUs that idle"
        if step <= _lack(view, decision, project):
            _has_excuse(view, decision, next(grant for grant in decision.grants if grant.job == name))


def _lack(view: View, decision: Decision, project: Project) -> int:
    own = sum(one.allowed for one in decision.ledger.accounts.values() if one.project == project.name)
    return decision.targets.entitled.get(project.name, 0) - own - view.pods.get(project.name, 0)


def _has_excuse(view: View, decision: Decision, grant: Grant) -> None:
    """Checks that a job which lacks what is guaranteed names who can't be shrunk."""
    late = [name for name, one in decision.ledger.accounts.items() if one.committed > one.allowed]
    stiff = bool(late or view.by_hand or any(view.pods.values()))
    assert stiff, f"{grant.job} lacks what is guaranteed to {grant.project}, and everybody obeys: {grant.reason}"
    if not grant.allowed:
        words = [*late, "pods that are not elastic", "by hand", "other jobs come first"]
        assert any(word in grant.reason for word in words), f"{grant.job} says nothing of {late}: {grant.reason}"
