"""The status document of a job, which `status --json` prints and its Service holds in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic_launcher.events import significant
from elastic_launcher.hints.resolve import Demand, most_samples
from elastic_launcher.report.state import JobState, NodeState
from elastic_launcher.report.words import duration

if TYPE_CHECKING:
    from elastic_launcher.adaptive.step_times import Table

GONE = "launcher gone"
IN_DEMAND = ("ranks", "goodput", "batch", "measured")
"""What the demand says of a size."""
SPEED_DIGITS = 4
"""Significant ones of a speed: what it varies by from report to report is noise."""


def document(
    state: JobState, job: Mapping[str, Any], control: Mapping[str, Any], *, alive: bool | None, now: float
) -> dict[str, Any]:
    """Returns the status as a JSON object, at ``now`` in seconds since the epoch.

    ``job`` and ``control`` are what ``job.json`` and ``control.json`` hold; ``alive`` is None where it is not known.
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
        "statistical_epoch": state.statistical_epoch,
        "samples": state.samples,
        "loss": state.loss,
        "samples_per_second": state.samples_per_second,
        "adaptive": dict(state.adaptive) or None,
        "learning_rate_rule": state.learning_rate_rule,
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
        "demand": demand(state, job, gone=gone, now=now),
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


def demand(state: JobState, job: Mapping[str, Any], *, gone: bool = False, now: float) -> dict[str, Any] | None:
    """Returns what a quota controller needs to know; None where it is not known how many nodes the job asks for.

    All counts are GPUs; a rank counts as one, on the CPU too. ``job`` is what ``job.json`` holds, ``gone`` says that
    the launcher was killed, ``now`` is in seconds since the epoch.
    """
    config, nodes = _asked(state, job)
    if nodes is None:
        return None
    per_node = nodes.nproc_per_node
    over = gone or state.finished is not None
    until = state.last_at if over else now
    hint, since = state.hint, None if over else state.usage.trains_since
    return {
        "minimum": nodes.min_nodes * per_node,
        "maximum": nodes.most_nodes * per_node,
        "per_node": per_node,
        "priority": config.get("priority") or 0,
        "match": _match(state, job, config),
        "submitted": round(submitted(state, job, now), 3),
        "held": 0 if gone and now > _end_of_orphans(state, config) else state.held,
        "waits": _wait(state, config),
        "following": {"allowed": hint.get("allowed"), "generation": hint.get("hint_generation")} if hint else None,
        "speeds": {str(ranks): significant(speed, SPEED_DIGITS) for ranks, speed in sorted(state.speeds.items())},
        "goodput": [] if over else [{key: one[key] for key in IN_DEMAND} for one in goodput_by_size(state, job)],
        "steps_left": None if state.total_steps is None else max(0, state.total_steps - state.step),
        "start_seconds": None if state.usage.start_seconds is None else round(state.usage.start_seconds, 1),
        "changes": state.usage.changes,
        "service": round(state.usage.gpu_seconds(until)),
        "started_training": None if since is None else round(since, 3),
        "scheduling": job.get("scheduling"),
        "reported": round(now, 3),
    }


def _asked(state: JobState, job: Mapping[str, Any]) -> tuple[Mapping[str, Any], Demand | None]:
    """Returns a job's configuration, and the nodes that it asks for; None where that is not known."""
    config = {**state.started, **(job.get("config") or {})}
    if not (config.get("min_nodes") and config.get("max_nodes")):
        return config, None
    per_node = config.get("nproc_per_node") or 1
    reported = state.step_times.get("bounds", {}).get("max_batch_size")
    batch = most_samples(config.get("global_batch_size"), config.get("autoscale_batch_size"), reported)
    return config, Demand({}, config["min_nodes"], config["max_nodes"], per_node, batch)


def goodput_table(state: JobState, job: Mapping[str, Any]) -> Table | None:
    """Returns the goodput on each number of ranks that a job may have; None before its steps were timed.

    ``job`` is what ``job.json`` holds.
    """
    nodes = _asked(state, job)[1]
    if nodes is None or not state.step_times:
        return None
    from elastic_launcher.adaptive import step_times  # numpy, where there is something to compute

    on = step_times.sizes(nodes.min_nodes, nodes.most_nodes, nodes.nproc_per_node)
    return step_times.table(state.step_times, on)


def goodput_by_size(state: JobState, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns that table as documents have it, without what is known about it."""
    table = goodput_table(state, job)
    return [] if table is None else [one.document() for one in table.rows]


def submitted(state: JobState, job: Mapping[str, Any], now: float) -> float:
    """Returns when the job was started for the first time; later attempts don't count."""
    known = (state.started_at, job.get("created"))
    return float(min((moment for moment in known if moment), default=now))


def _wait(state: JobState, config: Mapping[str, Any]) -> float:
    """Returns the seconds that it would wait for quota, by its option, or else by the hint that it follows.

    With restart-based resize it waits at its start only.
    """
    ends = state.world_size and config.get("resize") == "respawn"
    given = config.get("wait_for_quota")
    said = (state.hint or {}).get("wait_seconds") if given is None else given
    return 0.0 if ends else float(said or 0.0)


def _match(state: JobState, job: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Returns what hints are matched by, the id too."""
    own = job.get("service") or job.get("id") or state.started.get("job_id")
    found = {"job": config.get("name"), **(config.get("match") or {}), "id": own}
    return {key: str(name) for key, name in found.items() if name}


def _end_of_orphans(state: JobState, config: Mapping[str, Any]) -> float:
    """Returns by when the nodes of a launcher that was killed have ended."""
    return state.last_at + (config.get("orphan_timeout") or 0.0) + (config.get("grace_period") or 0.0)
