"""Who has not been heard of for too long: said after a while, and given up where others wait for it."""

from __future__ import annotations

from elastic_launcher.coordinator.observations import MemberSilent
from elastic_launcher.coordinator.roster import Phase
from elastic_launcher.coordinator.state import State

SILENCE_SECONDS = 15.0  # without a word from a member, before that is said
STALL_SECONDS = 1.0  # between two looks: more, and it was this process that was held up


class Silence:
    """Remembers when each member was heard.

    Args:
        heartbeat_timeout: Seconds of silence after which a member is given up that others wait for.
        now: Monotonic seconds.
    """

    def __init__(self, heartbeat_timeout: float, now: float) -> None:
        self._timeout = heartbeat_timeout
        self._looked = now
        self._heard: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._said: set[int] = set()

    def hear(self, member: int, now: float, waits: float | None = None) -> None:
        """Takes it that a member lives.

        Args:
            member: The member.
            now: Monotonic seconds.
            waits: For how long it has waited for the others in an operation; None if it does not say.
        """
        self._heard[member] = now
        self._said.discard(member)
        if waits is not None:
            self._waits[member] = waits

    def look(self, state: State, now: float) -> list[MemberSilent]:
        """Returns which members are silent; what this process itself slept is nobody's silence."""
        stall = now - self._looked
        self._looked = now
        if stall > STALL_SECONDS:
            self._heard = {member: heard + stall for member, heard in self._heard.items()}
        found = []
        for number, heard in self._heard.items():
            member, silence = state.members[number], now - heard
            lives = state.nodes[member.node].phase in (Phase.STARTING, Phase.WARM, Phase.ADMITTED)
            if not lives or member.exit is not None:
                continue
            if silence > self._timeout and self._is_waited_for(state, number, now):
                found.append(MemberSilent(now, number, silence, given_up=True))
            elif silence > SILENCE_SECONDS and number not in self._said:
                self._said.add(number)
                found.append(MemberSilent(now, number, silence))
        return found

    def _is_waited_for(self, state: State, number: int, now: float) -> bool:
        """Whether one of the group, which is heard of, has waited for long."""
        group, enough = state.survivors(), self._timeout / 2
        return number in group and any(
            now - self._heard.get(one, 0.0) < enough <= self._waits.get(one, 0.0) for one in group if one != number
        )
