"""Decides whether a failure of the script is its own, or follows from the loss of another node.

A rank that waits for a peer in a group of the script's own gets an exception when that peer is lost, often before the
loss is known. Invariant: a failure is not excused by the loss of its own node, nor by a loss that the script caused,
nor if its exception does not concern a peer.
"""

from __future__ import annotations

import re
from dataclasses import replace

from elastic_launcher.control.messages import Failed
from elastic_launcher.coordinator.model.ending import Verdict
from elastic_launcher.coordinator.model.roster import Member
from elastic_launcher.coordinator.model.state import State

PEER_SECONDS = 5.0  # for the loss of a peer to be known after an exception that concerns one: all ranks can be busy
_MESSAGE = re.compile(r"gloo|nccl|broken pipe|socket|connection|torch\.distributed|\bDist[A-Z]\w+Error", re.IGNORECASE)
_TRACEBACK = re.compile(r"[/\\]torch[/\\]distributed[/\\]")


def concerns_a_peer(failure: Failed) -> bool:
    """Returns whether an exception shows the loss of a peer, or follows from one."""
    return _MESSAGE.search(failure.message) is not None or _TRACEBACK.search(failure.traceback) is not None


def lost_elsewhere(state: State, node: int) -> Member | None:
    """Returns a member of the group that was lost on another node and not replaced, without a fault of the script."""
    for number in state.lost():
        member = state.members[number]
        siblings = [state.members[one] for one in state.nodes[member.node].members]
        own_fault = any(
            one.failure is not None or (one.exit is not None and one.exit.code and not one.gave_up) for one in siblings
        )
        if member.node != node and not own_fault:
            return member
    return None


def excuse(state: State, verdict: Verdict) -> Verdict:
    """Returns the verdict on the script, once related losses are known."""
    if not verdict.excusable or verdict.log_of is None:
        return verdict
    lost = lost_elsewhere(state, verdict.log_of[0])
    if lost is None:
        return verdict
    message = f"{verdict.message}; that came with the loss of {state.name(lost.number)}, and may be its consequence"
    return replace(verdict, message=message, curable=True)
