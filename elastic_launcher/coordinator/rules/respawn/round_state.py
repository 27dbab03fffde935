"""Helpers of the restart-based resize: who works in the current round, and how it is ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elastic_launcher.coordinator.model.actions import CloseRound
from elastic_launcher.coordinator.model.ending import Restart
from elastic_launcher.coordinator.model.roster import Node, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision

GATHER_SECONDS = 10.0
"""That nodes which could train wait for others that come up: a further start of all workers costs as much again."""


def in_round(state: State) -> tuple[int, ...]:
    """Returns the members of the round that is on, or forms."""
    return state.formation.members if state.formation is not None else state.group


def living(state: State) -> list[int]:
    """Returns those of them whose workers are known to have started and not ended."""
    found = [state.members[number] for number in in_round(state)]
    there = (Phase.ADMITTED, Phase.LEAVING)
    return [one.number for one in found if one.exit is None and state.nodes[one.node].phase in there]


def ended_well(state: State, node: int) -> bool:
    """Returns whether all workers of a node have ended with 0."""
    ends = [state.members[number].exit for number in state.nodes[node].members]
    return all(end is not None and end.clean for end in ends)


def close(state: State, cause: str, now: float) -> Decision:
    """Ends the workers of the round that is on; what a first call gave as the cause stays."""
    if state.restart is not None:
        return state, ()
    state = replace(state, restart=Restart(cause, now))
    return state, () if state.rules.c10d else (CloseRound(state.formations),)


def gathered(state: State, ready: Sequence[Node], now: float) -> bool:
    """Returns whether no more nodes come to those that are ready, or they have waited long enough for them."""
    wanted = state.target.nodes if state.target is not None else 0
    coming = any(not node.leave for node in state.in_phase(Phase.STARTING))
    coming = coming or (len(state.staying()) < wanted and not state.gave_up)
    return not coming or now - max(node.since for node in ready) >= GATHER_SECONDS
