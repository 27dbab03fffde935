"""Finds members and nodes that have not been heard from: a warning after a while, then the loss of the node.

Where others wait for a rank in an operation, that takes ``--heartbeat-timeout``; elsewhere ``--silence-timeout``, in
which the agent's word that the rank's process uses the CPU counts as the rank's: one that computes with Python's
interpreter locked can't speak for itself.
"""

from __future__ import annotations

from elastic_launcher.coordinator.model.observations import MemberSilent, NodeSilent
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State

SILENCE_SECONDS = 15.0  # without a report from a member, before a warning
DOUBT_SECONDS = 5.0  # without a word from a member, before its agent is asked about it, at most
LEAST_LOAD = 0.05  # of a core, from which on a process computes: threads that only look around use less
STALL_SECONDS = 1.0  # between two looks: more, and it was this process that was held up


class Silence:
    """Remembers when each member, and each node's agent, was heard.

    Args:
        heartbeat_timeout: Seconds of silence after which a member is given up that others wait for.
        silence_timeout: Seconds of silence after which any member is given up, and a node without members.
        now: Monotonic seconds.
    """

    def __init__(self, heartbeat_timeout: float, silence_timeout: float, now: float) -> None:
        self._timeout = heartbeat_timeout
        self._longest = silence_timeout
        self._looked = now
        self._heard: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._said: set[int] = set()
        self._back: set[int] = set()
        self._nodes: dict[int, float] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._works: dict[int, float] = {}

    def hear(self, member: int, now: float, waits: float | None = None) -> None:
        """Records that a member lives, and how many seconds it has waited for the others, if it says so."""
        self._heard[member] = self._works[member] = now
        self._cpu.pop(member, None)
        if member in self._said:
            self._said.discard(member)
            self._back.add(member)
        if waits is not None:
            self._waits[member] = waits

    def hear_node(self, node: int, now: float) -> None:
        """Records that a node's agent lives."""
        self._nodes[node] = now

    def vouch(self, member: int, cpu: float, now: float) -> None:
        """Takes an agent's word for a member that is silent: so many seconds of CPU its process has used so far."""
        before, since = self._cpu.get(member, (cpu, now))
        if cpu - before >= LEAST_LOAD * (now - since) > 0:
            self._works[member] = now
        self._cpu[member] = cpu, now

    def doubtful(self, state: State, node: int, now: float) -> list[int]:
        """Returns the members of a node about which its agent is to be asked."""
        own = [number for number in state.nodes[node].members if number in self._heard]
        doubt = min(DOUBT_SECONDS, self._longest / 4)
        return [number for number in own if now - self._heard[number] > doubt]

    def look(self, state: State, now: float) -> list[MemberSilent]:
        """Returns the silent members, without the time for which this process was suspended."""
        stall = now - self._looked
        self._looked = now
        if stall > STALL_SECONDS:
            for known in (self._heard, self._works, self._nodes):
                known.update({number: heard + stall for number, heard in known.items()})
        found = [MemberSilent(now, number, 0.0, over=True) for number in self._back]
        self._back.clear()
        for number, heard in self._heard.items():
            member, silence = state.members[number], now - heard
            if not _lives(state, member.node) or member.exit is not None:
                continue
            if silence > self._timeout and self._is_waited_for(state, number, now):
                found.append(MemberSilent(now, number, silence, given_up=True))
            elif now - self._lived(state, number) > self._longest:
                found.append(MemberSilent(now, number, silence, given_up=True, waited_for=False))
            elif silence > SILENCE_SECONDS and number not in self._said:
                self._said.add(number)
                found.append(MemberSilent(now, number, silence))
        return found

    def look_at_nodes(self, state: State, now: float) -> list[NodeSilent]:
        """Returns, after a look at members, which nodes are silent; not those whose members speak for themselves.

        A node that waits for a place, as one that its queue took back, has no agent: what it said before is forgotten.
        """
        self._nodes = {node: heard for node, heard in self._nodes.items() if not _waits(state, node)}
        return [
            NodeSilent(now, node, now - heard)
            for node, heard in self._nodes.items()
            if now - heard > self._longest
            and _lives(state, node)
            and not any(number in self._heard for number in state.nodes[node].members)
        ]

    def _lived(self, state: State, number: int) -> float:
        """Returns when a member was last known to live; of one that comes up its agent's word is enough.

        That may read data for long with the interpreter locked, and ``--start-timeout`` is for it.
        """
        node = state.nodes[state.members[number].node]
        agent = self._nodes.get(node.number, 0.0) if node.phase is Phase.STARTING else 0.0
        return max(self._works[number], agent)

    def _is_waited_for(self, state: State, number: int, now: float) -> bool:
        """Whether a member of the group that is not silent has waited for long."""
        group, enough = state.survivors(), self._timeout / 2
        return number in group and any(
            now - self._heard.get(one, 0.0) < enough <= self._waits.get(one, 0.0) for one in group if one != number
        )


def _lives(state: State, node: int) -> bool:
    found = state.nodes.get(node)
    return found is not None and found.phase in (Phase.STARTING, Phase.WARM, Phase.ADMITTED)


def _waits(state: State, node: int) -> bool:
    found = state.nodes.get(node)
    return found is not None and bool(found.waits) and state.untrained(found)
