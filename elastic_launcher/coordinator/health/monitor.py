"""Judges ranks by their reports: which are silent, stuck or slow, and which can't leave at a boundary in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.health.deadlocks import Wait, are_apart, find_awaited, follow
from elastic_launcher.coordinator.health.hangs import find_stuck, limit
from elastic_launcher.coordinator.health.silence import STALL_SECONDS, Silence
from elastic_launcher.coordinator.health.stragglers import Slow, factors, judge
from elastic_launcher.coordinator.model.deadlines import NOTICE_GATHER_SECONDS, SAVE_SECONDS, too_far
from elastic_launcher.coordinator.model.observations import (
    GroupHangs,
    MemberAwaited,
    MembersApart,
    MemberSlow,
    MemberStuck,
    NoticeExpires,
    Observation,
)
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.roster_tables import THERE
from elastic_launcher.coordinator.model.state import State

LEAST_WAIT = 1 / 3  # of the heartbeat time-out, for which each rank is known to wait before ranks are taken to be apart
LOOK_SECONDS = 0.05
"""Seconds between two looks at the members, in a job of at most `MANY`."""
MANY = 512
"""Members that one look takes about 2 ms for; in a larger job, the time between two looks grows in proportion."""
SCRIPT_ENDS = "at the end of its script"


class Watch:
    """Remembers each member's last report, and when it came.

    Args:
        heartbeat_timeout: Seconds of silence after which a member is given up that others wait for.
        progress_timeout: Least seconds after which one is given up that gets no further in a step.
        now: Monotonic seconds.
        silence_timeout: Seconds of silence after which any is given up.
    """

    def __init__(
        self, heartbeat_timeout: float, progress_timeout: float, now: float, silence_timeout: float = 60.0
    ) -> None:
        self._silence = Silence(heartbeat_timeout, silence_timeout, now)
        self._fresh = heartbeat_timeout
        self._floor = progress_timeout
        self._looked = now
        self._told: dict[int, tuple[float, Vitals]] = {}
        self._work: dict[int, tuple[int, float]] = {}
        self._slow = Slow()
        self._waits: dict[int, Wait | None] = {}
        self._named: tuple[int, str] | None = None

    def hear(self, member: int, now: float, vitals: Vitals | None = None) -> None:
        """Records that a member lives, and what it does, if it reports that."""
        self._silence.hear(member, now, None if vitals is None else vitals.waits)
        if vitals is None:
            return
        self._told[member] = now, vitals
        if member not in self._work or self._work[member][0] != vitals.work:
            self._work[member] = vitals.work, now
        self._waits[member] = follow(self._waits.get(member), vitals, now)

    def hear_node(self, state: State, node: int, now: float, cpu: Mapping[int, float]) -> list[int]:
        """Records that a node's agent lives; returns the silent members about which the agent is asked.

        ``cpu`` has the seconds of CPU that members have used so far, of those about which it was asked before.
        """
        self._silence.hear_node(node, now)
        for member in set(state.nodes[node].members) & cpu.keys():
            self._silence.vouch(member, cpu[member], now)
        return self._silence.doubtful(state, node, now)

    def look(self, state: State, now: float) -> list[Observation]:
        """Returns the observations about members, without the time for which this process was suspended."""
        stall = now - self._looked
        self._looked = now
        if stall > STALL_SECONDS:
            self._work = {member: (work, since + stall) for member, (work, since) in self._work.items()}
            self._waits = {n: one and replace(one, since=one.since + stall) for n, one in self._waits.items()}
        group = state.survivors()
        vitals = {n: self._told[n][1] for n in group if n in self._told and now - self._told[n][0] < self._fresh}
        found: list[Observation] = [*self._silence.look(state, now), *self._silence.look_at_nodes(state, now)]
        longest = limit([one.usual for one in vitals.values()], self._floor)
        found += self._stuck(vitals, now, longest)
        if state.lost():  # a group of the script's own may have one that is lost in it
            found += [GroupHangs(now, number, one.outside) for number, one in vitals.items() if one.outside > longest]
        found += self._apart(state, vitals, now, longest)
        self._slow, changes = judge(self._slow, factors(vitals), now)
        found += [MemberSlow(now, one.member, one.factor, one.over, vitals[one.member].own) for one in changes]
        expired = self._expired(state, vitals, now)
        return [*found, NoticeExpires(now, expired)] if expired else found

    def _stuck(self, vitals: dict[int, Vitals], now: float, longest: float) -> list[MemberStuck]:
        at_work = {number: now - self._work[number][1] for number, one in vitals.items() if one.work}
        waits = {number: one.waits for number, one in vitals.items()}
        return [MemberStuck(now, number, at_work[number]) for number in find_stuck(at_work, waits, longest)]

    def _apart(self, state: State, vitals: dict[int, Vitals], now: float, longest: float) -> list[Observation]:
        """Returns that ranks wait for each other in vain, or who keeps the others waiting."""
        live = [n for n in state.survivors() if not state.members[n].ended and state.members[n].exit is None]
        waits = [self._waits.get(number) if number in vitals else None for number in live]
        if are_apart(waits, now, self._fresh * LEAST_WAIT, longest):
            return [MembersApart(now, tuple((n, one.doing) for n, one in zip(live, waits, strict=True) if one))]
        ended = {
            n: structs.replace(one, waits=0.0, turn=0, doing=SCRIPT_ENDS)
            for n, one in vitals.items()
            if state.members[n].ended
        }
        vitals = {**vitals, **ended}
        awaited = find_awaited(vitals, longest / 2)
        before = self._named
        self._named = None if awaited is None else (awaited.member, vitals[awaited.member].doing)
        if awaited is None or before == self._named:
            return []
        waiter, member = vitals[awaited.waiter], vitals[awaited.member]
        return [
            MemberAwaited(
                now,
                awaited.member,
                member.doing,
                member.busy,
                awaited.waiter,
                waiter.doing,
                waiter.waits,
                longest if member.work else math.inf,
            )
        ]

    def _expired(self, state: State, vitals: dict[int, Vitals], now: float) -> tuple[int, ...]:
        """Returns the nodes with a notice that can't wait for the boundary."""
        usual = max((one.usual for one in vitals.values()), default=0.0)
        since = min((one.since + now - self._told[number][0] for number, one in vitals.items()), default=0.0)
        formation = state.formation
        formed = formation is not None and formation.mode == "shrink" and formation.formed >= {*formation.members}
        spare = max(state.save_seconds, SAVE_SECONDS) if state.halts else 0.0  # who halts has to be saved by then, too
        due = _due(state, now)
        return tuple(number for number, by in due.items() if too_far(usual, since, formed, by - now - spare))


def between_looks(state: State) -> float:
    """Returns the seconds until the next look: what that costs grows with the number of members that are there."""
    members = state.nodes.count(*THERE) * state.rules.nproc_per_node
    return min(STALL_SECONDS / 2, LOOK_SECONDS * max(1.0, members / MANY))


def _due(state: State, now: float) -> dict[int, float]:
    """Returns when the nodes with a notice may be killed, once those are known that go together."""
    told_by = now - NOTICE_GATHER_SECONDS + state.rules.grace_period
    admitted = state.in_phase(Phase.ADMITTED)
    due = {n.number: n.leave_by for n in admitted if n.leave == "hint" or n.leave_by <= told_by}
    if state.halts:  # all go, some of them because others must
        reclaimed = state.target is not None and len(state.staying()) > state.target.nodes
        by = min(state.halts_by, state.target.by if state.target is not None and reclaimed else math.inf)
        due |= {n.number: min(n.leave_by, by) for n in admitted}
    return due
