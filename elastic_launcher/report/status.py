"""The status document of a job, which `status --json` prints and its Service holds in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_launcher.report.state import JobState, NodeState
from elastic_launcher.report.words import duration

GONE = "launcher gone"


def document(
    state: JobState, job: Mapping[str, Any], control: Mapping[str, Any], *, alive: bool | None, now: float
) -> dict[str, Any]:
    """Returns the status as a JSON object.

    Args:
        state: The state after the events.
        job: What ``job.json`` holds.
        control: What ``control.json`` holds.
        alive: Whether the launcher is; None where that is not known.
        now: Seconds since the epoch.
    """
    finished = state.finished or {}
    gone = state.finished is None and alive is False
    config = job.get("config") or {}
    now = max(now, state.last_at)  # the wall clock may have been set back since
    started_at = state.started_at or job.get("created") or now
    return {
        "v": 1,
        "job": state.started.get("job_id") or job.get("id"),
        "name": state.started.get("name") or config.get("name"),
        "state": GONE if gone else state.outcome,
        "exit_code": finished.get("exit_code"),
        "message": str(finished.get("message") or (_orphaned(config) if gone else state.message)),
        "started": started_at,
        "seconds": round(max(0.0, (now if state.finished is None and not gone else state.last_at) - started_at), 3),
        "step": state.step,
        "total_steps": state.total_steps,
        "epoch": state.epoch,
        "epochs": state.epochs,
        "samples": state.samples,
        "loss": state.loss,
        "samples_per_second": state.samples_per_second,
        "seconds_left": None if gone or state.seconds_left is None else round(state.seconds_left, 1),
        "generation": state.generation,
        "world_size": state.world_size,
        "resizes": state.resizes,
        "hint": state.quota or None,
        "admitted": state.admitted,
        "nodes": _nodes(state, over=gone or state.finished is not None),
        "waits_for": state.waits_for or None,
        "stragglers": [dict(told) for _, told in sorted(state.stragglers.items())],
        "silent": [dict(told) for _, told in sorted(state.silent.items())],
        "logged": state.logged,
        "launcher": {"host": job.get("host"), "pid": job.get("pid"), "alive": alive, "control": control.get("url")},
    }


def _orphaned(config: Mapping[str, Any]) -> str:
    patience = config.get("orphan_timeout")
    when = "" if patience is None else f" within {duration(float(patience))}"
    return f"the launcher ended without a word (killed?); its nodes leave by themselves{when}"


def _nodes(state: JobState, *, over: bool) -> list[dict[str, Any]]:
    """Returns the nodes that are there; of a job that is over, those of its last generation."""
    ranks = {member["member"]: rank for rank, member in enumerate(state.members)}
    last = {member["node"] for member in state.members}
    after = "unknown" if state.finished is None else "trained" if state.outcome == "finished" else "stopped"
    return [
        {
            "node": node.node,
            "phase": after if over and node.phase == "training" else _phase(state, node),
            "members": list(node.members),
            "ranks": [ranks[member] for member in node.members if member in ranks],
        }
        for node in state.nodes.values()
        if (node.node in last if over else node.is_there)
    ]


def _phase(state: JobState, node: NodeState) -> str:
    return "pending" if node.node in state.pending and node.phase == "starting" else node.phase
