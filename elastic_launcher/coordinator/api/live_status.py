"""The status of a running job: the document behind ``GET /v1/status``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import structs

from elastic_launcher.coordinator.model.roster import Member, Node, Phase
from elastic_launcher.coordinator.model.state import State


def live_status(state: State) -> dict[str, Any]:
    """Returns what is known of the job as JSON values; gone nodes are left out."""
    formation = state.formation
    return {
        "v": 1,
        "phase": phase(state),
        "generation": state.generation_number,
        "world_size": len(state.group),
        "step": state.step,
        "epoch": state.epoch,
        "samples": state.samples,
        "target": None if state.target is None else asdict(state.target) | {"leave": sorted(state.target.leave)},
        "nodes": [_node(state, node) for node in state.nodes.values() if node.phase is not Phase.GONE],
        "formation": None
        if formation is None
        else {
            "formation": formation.number,
            "mode": formation.mode,
            "cause": formation.cause,
            "members": list(formation.members),
            "leavers": list(formation.leavers),
            "formed": sorted(formation.formed),
            "active": sorted(formation.active),
        },
        "progress": None if state.progress is None else structs.asdict(state.progress),
        "log": state.logged.last(),
        "saved": None if state.saved is None else {"step": state.saved.step, "path": state.saved.path},
    }


def phase(state: State) -> str:
    """Returns in one word what the job is about."""
    if state.finished and state.restart is not None:
        return "starting"  # again, once its nodes are gone
    if state.finished or state.verdict is not None:
        return "ending"
    if state.stopping is not None:
        return "stopping"
    if state.pause is not None:
        return f"waiting for {state.pause.lack.value}"
    if state.over:
        return "finishing"
    if state.generation:
        return "training"
    return "waiting" if state.target is None else "starting"


def _node(state: State, node: Node) -> dict[str, Any]:
    return {
        "node": node.number,
        "phase": node.phase.value,
        "leave": node.leave or None,
        "members": [_member(state, state.members[number]) for number in node.members],
    }


def _member(state: State, member: Member) -> dict[str, Any]:
    return {
        "member": member.number,
        "local_rank": member.local_rank,
        "rank": state.group.index(member.number) if member.number in state.group else None,
        "pid": member.pid,
        "warm": member.fingerprint is not None,
        "step": member.step,
    }
