"""The body of ``elastic_plan``: how large may the next step be, as the hints stand now?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic_launcher.cli.hint_places import hint_place
from elastic_launcher.config import ExitCode
from elastic_launcher.hints import Demand, HintError, Resolution, parse, resolve
from elastic_launcher.options import BY_KEY, MATCH_KEYS, ConfigError, read_option
from elastic_launcher.step import StepFailed, say

LOOK_SECONDS = 5.0
"""Between looks at the hints while the step waits for quota."""

Planned = tuple[int, str, str]


def plan_step(
    given: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Planned:
    """Returns nodes, GPUs and the reason.

    Args:
        given: The component's parameters, by name.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.

    Raises:
        StepFailed: If the parameters or the hints can't be used.
        SystemExit: With the launcher's exit code, if the hints allow less than the minimum.
    """
    try:
        demand = _demand(given)
        until = clock() + given["wait_for_quota"]
        while True:
            nodes, why = _look(given, demand)
            say(why)
            if nodes:
                return nodes, str(nodes * demand.nproc_per_node), why
            if clock() >= until:
                raise SystemExit(int(ExitCode.NO_QUOTA))
            sleep(min(LOOK_SECONDS, max(0.0, until - clock())))
    except (ConfigError, HintError) as error:
        raise StepFailed(f"{error} (exit code {int(ExitCode.BAD_USAGE)})", ExitCode.BAD_USAGE) from error


def _demand(given: Mapping[str, Any]) -> Demand:
    match = {str(key): str(value) for key, value in (given["match"] or {}).items()}
    unknown = [key for key in match if key not in MATCH_KEYS]
    if unknown:
        raise ConfigError(f"match has the unknown key {unknown[0]!r}; known are {', '.join(MATCH_KEYS)}")
    nodes = read_option(BY_KEY["nodes"], f"{given['min_nodes']}:{given['max_nodes'] or given['min_nodes']}")
    ranks = read_option(BY_KEY["nproc_per_node"], given["nproc_per_node"])["nproc_per_node"]
    share = read_option(BY_KEY["share"], given["share"])["share"] if given["share"] else None
    named = {"job": given["name"], **match} if given["name"] else match
    return Demand(named, nodes["min_nodes"], nodes["max_nodes"], ranks, given["global_batch_size"] or None, share)


def _look(given: Mapping[str, Any], demand: Demand) -> tuple[int, str]:
    """Returns how many nodes there may be now, and why."""
    if not given["hints"]:
        if given["require_hints"]:
            raise ConfigError("require_hints needs hints: say where they are, or leave require_hints out")
        return demand.max_nodes, f"no hints were given: {demand.max_nodes} nodes, the most asked for"
    place = hint_place(given["hints"])
    try:
        found = place.read()
    except OSError as error:
        if given["require_hints"]:
            raise ConfigError(f"hints: {error}; require_hints asks for them") from error
        return demand.min_nodes, f"hints: {error}; {demand.min_nodes} nodes, the fewest asked for"
    try:
        resolution = resolve(parse(found), demand, now=time.time(), starting=True)
    except HintError as error:
        raise HintError(f"hints: {place.name}: {error}", error.path) from error
    return resolution.nodes, _told(resolution)


def _told(resolution: Resolution) -> str:
    return "; ".join(resolution.why)
