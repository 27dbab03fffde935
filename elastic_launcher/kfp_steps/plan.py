"""The body of ``elastic_plan``: returns how large the next step may be by the current hints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.hints import Demand, HintError, parse, resolve
from elastic_launcher.hints.stores import hint_place
from elastic_launcher.kfp_steps.arrival import received
from elastic_launcher.options import ConfigError
from elastic_launcher.pipeline_step import StepFailed, say

LOOK_SECONDS = 5.0
"""Between looks at the hints while the step waits for quota."""

Planned = tuple[int, str, str]
Look = tuple[int, str, float]
"""How many nodes there may be, why, and how many seconds the hints have a job wait for its quota."""


def plan_step(
    given: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Planned:
    """Returns nodes, GPUs and the reason, from the component's parameters by name.

    Raises:
        StepFailed: If the parameters or the hints can't be used.
        SystemExit: With the launcher's exit code, if the hints allow less than the minimum.
    """
    given = received(given)
    try:
        job = _job(given)
        demand = _demand(given, job)
        began = clock()
        nodes, why, wait = _first_look(given, demand)
        say(why)
        while not nodes:
            until = began + (wait if job.wait_for_quota is None else job.wait_for_quota)
            if clock() >= until:
                raise SystemExit(int(ExitCode.NO_QUOTA))
            sleep(min(LOOK_SECONDS, max(0.0, until - clock())))
            nodes, why, wait = _next_look(given, demand, wait)
            say(why)
        return nodes, str(nodes * demand.nproc_per_node), why
    except (ConfigError, HintError) as error:
        raise StepFailed(f"{error} (exit code {int(ExitCode.BAD_USAGE)})", ExitCode.BAD_USAGE) from error


def _job(given: Mapping[str, Any]) -> JobConfig:
    """Returns the parameters as a job, which refuses what the launcher would refuse, in its words."""
    texts = {key: given[key] for key in ("hints", "match", "name", "share", "require_hints", "nproc_per_node")}
    texts["nodes"] = f"{given['min_nodes']}:{given['max_nodes'] or given['min_nodes']}"
    texts |= {
        "global_batch_size": given["global_batch_size"] or None,
        "wait_for_quota": given["wait_for_quota"] or None,
    }
    return JobConfig.from_texts(texts, ["train.py"])  # a placeholder


def _demand(given: Mapping[str, Any], job: JobConfig) -> Demand:
    match = dict(job.match)
    if not given["name"] and "job" not in (given["match"] or {}):
        del match["job"]
    return Demand(match, job.min_nodes, job.max_nodes, job.nproc_per_node, job.global_batch_size, job.share)


def _first_look(given: Mapping[str, Any], demand: Demand) -> Look:
    """Returns what there may be now; 0 nodes only where a document says so."""
    if not given["hints"]:
        return demand.most_nodes, f"no hints were given: {demand.most_nodes} nodes, the most asked for", 0.0
    try:
        return _look(given, demand)
    except OSError as error:
        if given["require_hints"]:
            raise ConfigError(f"hints: {error}; require_hints asks for them") from error
        return demand.min_nodes, f"hints: {error}; {demand.min_nodes} nodes, the fewest asked for", 0.0


def _next_look(given: Mapping[str, Any], demand: Demand, wait: float) -> Look:
    """Returns the same while quota is waited for: what can't be read leaves the last document in force."""
    try:
        return _look(given, demand)
    except OSError as error:
        why = f"hints: {error}"
    except HintError as error:
        why = str(error)
    return 0, f"{why}; the last good document stays in force", wait


def _look(given: Mapping[str, Any], demand: Demand) -> Look:
    """Returns what the hints give now.

    Raises:
        HintError: If they can't be used.
        OSError: If they can't be read.
    """
    place = hint_place(given["hints"])
    found = place.read()
    try:
        resolution = resolve(parse(found), demand, now=time.time(), starting=True)
    except HintError as error:
        raise HintError(f"hints: {place.name}: {error}", error.path) from error
    return resolution.nodes, "; ".join(resolution.why), resolution.wait or 0.0
