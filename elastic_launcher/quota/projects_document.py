"""Parses and validates the projects document, YAML or JSON (``apiVersion``: ``elastic-quota/v1``).

Invariants of every document that is accepted: parents make a tree, a project's guarantee is at most its own limit, and
no two projects have the same match. Everything else is refused with its line, its place, what it is and what it must
be. What is odd but has a meaning is a warning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from elastic_launcher.hints.document import DEFAULT_GROW_AFTER, MAX_BYTES, MAX_GPUS
from elastic_launcher.hints.match import named, read_match, spelled
from elastic_launcher.hints.values import HintError, describe, join, missing, objects, quoted, seconds, whole, wrong
from elastic_launcher.quota.projects import (
    GPU,
    WAIT_SECONDS,
    Autoscale,
    Capacity,
    Project,
    Projects,
    QuotaError,
    with_guarantees,
)
from elastic_launcher.quota.yaml_text import Loaded, load
from elastic_launcher.report.words import plural

API_VERSION = "elastic-quota/v1"
MAX_PROJECTS = 1000
MAX_WEIGHT = 10**6
SAFE_TTL = 60.0
"""Seconds that hints have to hold at least: they are renewed by the first round after a third of that, of which there
is one every 30 s if nothing changes."""
DEFAULT_PROJECT = "default"
"""The project of jobs that no project matches, if the document does not name another one."""
REFUSE = "refuse"
"""What ``unmatched`` is if such jobs are refused."""

_TOP_KEYS = (
    "apiVersion",
    "capacity",
    "gracePeriodSeconds",
    "growAfterSeconds",
    "waitSeconds",
    "ttlSeconds",
    "fairness",
    "unmatched",
    "projects",
)
_OTHERS: Mapping[str, Sequence[str]] = {"resourceQuotas": (), "kai": (), "kueue": ()}
"""Other enforcers that bound what there is, with the settings that each of them has."""
_CAPACITY_KEYS = ("gpus", "machines", "autoscale", *_OTHERS)
_AUTOSCALE_KEYS = ("max", "utility")
_FIELDS = {
    "parent": "parent",
    "guaranteed": "guaranteed",
    "limit": "limit",
    "weight": "weight",
    "priority": "priority",
    "minRunSeconds": "min_run_seconds",
    "waitSeconds": "wait_seconds",
    "gracePeriodSeconds": "grace_period",
    "match": "patterns",
}
"""The fields of `Project` by their keys."""
_PROJECT_KEYS = ("name", *_FIELDS)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z0-9]([-./\w]{0,251}[A-Za-z0-9])?", re.ASCII)
_NAME_FORM = 'a name of at most 63 lower-case letters, digits and dashes, such as "team-a"'


def parse_projects(text: str | bytes) -> Projects:
    """Reads a projects document.

    Raises:
        QuotaError: If it can't be used; the message says where and why, and what it must be.
    """
    loaded = load(text, MAX_BYTES)
    try:
        return _parse(loaded)
    except HintError as error:
        raise QuotaError(str(error), error.path, loaded.line(error.path)) from error


def _parse(loaded: Loaded) -> Projects:
    found = loaded.value
    if not isinstance(found, dict):
        raise HintError(f'the document is {describe(found)}; it must be an object with "apiVersion" and "projects"')
    if "apiVersion" not in found:
        raise missing("apiVersion", quoted(API_VERSION))
    if found["apiVersion"] != API_VERSION:
        raise wrong("apiVersion", found["apiVersion"], quoted(API_VERSION))
    _refuse_unknown(found, _TOP_KEYS, "")
    capacity = _capacity(found)
    grace = _seconds(found, "gracePeriodSeconds", "", 30.0)
    grow_after = _seconds(found, "growAfterSeconds", "", DEFAULT_GROW_AFTER)
    wait = _seconds(found, "waitSeconds", "", WAIT_SECONDS)
    ttl = _seconds(found, "ttlSeconds", "", 120.0)
    if not ttl:
        raise wrong("ttlSeconds", found["ttlSeconds"], "a number of seconds above 0, or hints never hold")
    queues = capacity is not None and capacity.gives_projects
    rows = _rows(found, queues)
    projects = [_project(row, f"projects[{number}]", grace, wait) for number, row in enumerate(rows)]
    _refuse_same_names(projects, loaded)
    _refuse_bad_parents(projects, queues)
    _refuse_same_matches(projects, rows, loaded)
    unmatched = _unmatched(found, None if queues else [project.name for project in projects])
    given = {
        project.name: frozenset(_FIELDS[key] for key in row if key != "name")
        for project, row in zip(projects, rows, strict=True)
    }
    projects = with_guarantees(projects, [name for name, fields in given.items() if "guaranteed" not in fields])
    if unmatched == DEFAULT_PROJECT and all(project.name != DEFAULT_PROJECT for project in projects):
        projects.append(Project(DEFAULT_PROJECT, grace_period=grace, patterns=(), wait_seconds=wait))
    parsed = Projects(tuple(projects), unmatched, capacity, grow_after, ttl, fairness=_fairness(found))
    if queues:  # what is odd shows once they are known
        return replace(parsed, given=MappingProxyType(given), grace_period=grace, wait_seconds=wait)
    return replace(parsed, warnings=tuple(_warnings(parsed, loaded)))


def _rows(found: Mapping[str, Any], queues: bool) -> list[dict[str, Any]]:
    if "projects" not in found:
        if queues:
            return []
        raise missing("projects", "a list of projects")
    rows = found["projects"]
    if not isinstance(rows, list):
        raise wrong("projects", rows, "a list of projects")
    if not rows and not queues:
        raise HintError('"projects" is empty; it must have at least one project', "projects")
    if len(rows) > MAX_PROJECTS:
        raise HintError(f'"projects" has {len(rows)} projects; it must have {MAX_PROJECTS} at most', "projects")
    return [objects(row, f"projects[{number}]", 'an object with "name"') for number, row in enumerate(rows)]


def _project(row: Mapping[str, Any], path: str, grace: float, wait: float) -> Project:
    _refuse_unknown(row, _PROJECT_KEYS, path)
    if "name" not in row:
        raise missing(f"{path}.name", _NAME_FORM)
    name = _label(row["name"], f"{path}.name", _NAME_FORM)
    if name == REFUSE:
        raise wrong(f"{path}.name", name, f'another name, since "unmatched: {REFUSE}" stands for no project')
    guaranteed, limit = _gpus(row, "guaranteed", path), _gpus(row, "limit", path)
    if guaranteed is not None and limit is not None and guaranteed > limit:
        raise wrong(f"{path}.guaranteed", guaranteed, f"at most the limit, {limit}")
    return Project(
        name,
        guaranteed or 0,
        limit,
        _number(row, "weight", path) if "weight" in row else 1.0,
        whole(row, "priority", path, "a whole number", None) or 0,
        _label(row["parent"], f"{path}.parent", "the name of a project") if "parent" in row else None,
        _seconds(row, "minRunSeconds", path, 0.0),
        _seconds(row, "gracePeriodSeconds", path, grace),
        _patterns(row["match"], f"{path}.match") if "match" in row else None,
        _seconds(row, "waitSeconds", path, wait),
    )


def _patterns(value: Any, path: str) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list):
        return (read_match(value, path),)
    if not value:
        raise HintError(
            f'"match" is empty ({path}); it must have at least one object such as {{"queue": "team-a"}}; leave it out '
            "for jobs that name the project",
            path,
        )
    return tuple(read_match(one, f"{path}[{number}]") for number, one in enumerate(value))


def _capacity(found: Mapping[str, Any]) -> Capacity | None:
    if "capacity" not in found:
        return None
    what = '{"gpus": 16}, or {"machines": {"resource": "nvidia.com/gpu"}}, or left out'
    row = objects(found["capacity"], "capacity", what)
    _refuse_unknown(row, _CAPACITY_KEYS, "capacity")
    if not row:
        raise HintError(f'"capacity" is empty; it must be {what}', "capacity")
    gpus = _gpus(row, "gpus", "capacity")
    if gpus is not None and "machines" in row:
        raise HintError(
            '"capacity" has "gpus" and "machines" (capacity.machines); it must have one of them: '
            "a number of GPUs, or those of the machines",
            "capacity.machines",
        )
    machines = objects(row.get("machines", {}), "capacity.machines")
    _refuse_unknown(machines, ("resource",), "capacity.machines")
    resource = machines.get("resource", GPU)
    if not isinstance(resource, str) or not _RESOURCE.fullmatch(resource):
        raise wrong("capacity.machines.resource", resource, 'the name of a resource, such as "nvidia.com/gpu"')
    for key, known in _OTHERS.items():
        if key in row:
            _refuse_unknown(objects(row[key], f"capacity.{key}", "{}, for its defaults"), known, f"capacity.{key}")
    return Capacity(gpus, resource, "resourceQuotas" in row, "kai" in row, "kueue" in row, _autoscale(row))


def _autoscale(row: Mapping[str, Any]) -> Autoscale | None:
    if "autoscale" not in row:
        return None
    path = "capacity.autoscale"
    found = objects(row["autoscale"], path, 'an object with "max"')
    _refuse_unknown(found, _AUTOSCALE_KEYS, path)
    if "gpus" in row:
        raise HintError(
            f'"capacity" has "gpus" and "autoscale" ({path}); it must have one of them: a number stays as it is',
            path,
        )
    most = _gpus(found, "max", path)
    if not most:
        if most is None:
            raise missing(f"{path}.max", "the number of GPUs that hints may add up to")
        raise wrong(f"{path}.max", most, "1 GPU or more")
    if "utility" not in found:
        return Autoscale(most)
    band = found["utility"]
    what = "two numbers above 0, the lower one first, such as [0.35, 0.65]"
    if not isinstance(band, list) or len(band) != 2 or any(type(one) not in (int, float) for one in band):
        raise wrong(f"{path}.utility", band, what)
    low, high = map(float, band)
    if not 0 < low < high < math.inf:
        raise wrong(f"{path}.utility", band, what)
    return Autoscale(most, low, high)


def _unmatched(found: Mapping[str, Any], names: Sequence[str] | None) -> str | None:
    """Returns the project of jobs that no project matches.

    Args:
        found: The document.
        names: Of all projects; None where they are not all known.
    """
    value = found.get("unmatched", DEFAULT_PROJECT)
    if value == REFUSE:
        return None
    if names is None:
        return _label(value, "unmatched", f'the name of a project, or "{REFUSE}"')
    if value != DEFAULT_PROJECT and value not in names:
        raise wrong("unmatched", value, f'the name of a project, or "{REFUSE}"{_meant(value, [*names, REFUSE])}')
    return str(value)


def _refuse_unknown(row: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for key in row:
        if key not in known:
            where = join(path, key)
            at = f" ({where})" if path else ""
            what = f"it must be one of {', '.join(known)}{_meant(key, known)}" if known else "it must be left out"
            raise HintError(f"{quoted(key)} is unknown{at}; {what}", where)


def _meant(value: Any, known: Collection[str]) -> str:
    close = get_close_matches(value, known, 1) if isinstance(value, str) else []
    return f'; did you mean "{close[0]}"?' if close else ""


def _refuse_same_names(projects: Sequence[Project], loaded: Loaded) -> None:
    first: dict[str, str] = {}
    for number, project in enumerate(projects):
        path = f"projects[{number}]"
        other = first.setdefault(project.name, path)
        if other != path:
            what = f"a name of its own: {other} has this one, in line {loaded.line(f'{other}.name')}"
            raise wrong(f"{path}.name", project.name, what)


def _refuse_bad_parents(projects: Sequence[Project], queues: bool) -> None:
    parents = {project.name: project.parent for project in projects}
    for number, project in enumerate(projects):
        path = f"projects[{number}].parent"
        if queues and project.parent is not None:
            parents.setdefault(project.parent, None)
        if project.parent is not None and project.parent not in parents:
            raise wrong(path, project.parent, f"the name of a project{_meant(project.parent, parents)}")
    rooted: set[str] = set()
    for number, project in enumerate(projects):
        chain, name = [project.name], project.parent
        while name is not None and name not in rooted and name not in chain:
            chain.append(name)
            name = parents[name]
        if name == project.name:
            circle = " → ".join([*chain, name])
            what = f"a project that is not below this one: {circle} is a circle"
            raise wrong(f"projects[{number}].parent", project.parent, what)
        if name is None or name in rooted:
            rooted.update(chain)


def _refuse_same_matches(projects: Sequence[Project], rows: Sequence[Mapping[str, Any]], loaded: Loaded) -> None:
    seen: dict[tuple[tuple[str, str], ...], tuple[str, str]] = {}
    for number, (project, row) in enumerate(zip(projects, rows, strict=True)):
        for place, pattern in enumerate(project.matched_by):
            path = f"projects[{number}].match"
            path = f"{path}[{place}]" if isinstance(row.get("match"), list) else path
            name, other = seen.setdefault(tuple(sorted(named(pattern).items())), (project.name, path))
            if other != path:
                raise HintError(
                    f"project {project.name} matches {spelled(pattern)} ({path}), and so does project {name} ({other}, "
                    f"line {loaded.line(other)}); a job has one project: change one of them",
                    path,
                )


def _warnings(parsed: Projects, loaded: Loaded) -> Iterator[str]:
    if parsed.ttl_seconds < SAFE_TTL:
        line, ttl = loaded.line("ttlSeconds"), f"{parsed.ttl_seconds:g}"
        yield f"line {line}: hints expire between two rounds after {ttl} s (ttlSeconds); {SAFE_TTL:g} or more is safe"
    shared = "when not all of them are there, they are shared in proportion"
    top = sum(project.guaranteed for project in parsed.projects if project.parent is None)
    of_all = f"the projects are guaranteed {plural(top, 'GPU')}"
    gpus = parsed.capacity.gpus if parsed.capacity is not None else None
    if gpus is not None and top > gpus:
        line = loaded.line("capacity.gpus")
        yield f"line {line}: {of_all}, and there are {gpus} (capacity.gpus); {shared}"
    autoscale = parsed.capacity.autoscale if parsed.capacity is not None else None
    if autoscale is not None and top > autoscale.max:
        line, most = loaded.line("capacity.autoscale.max"), f"{autoscale.max} at most (capacity.autoscale.max)"
        yield f"line {line}: {of_all}, and there will be {most}; {shared}"
    for number, project in enumerate(parsed.projects):
        path = f"projects[{number}]"
        line, has = loaded.line(f"{path}.guaranteed"), project.guaranteed
        below = sum(parsed.named(name).guaranteed for name in parsed.children(project.name))
        if below > has:
            of_them = f"the projects below {project.name} are guaranteed {plural(below, 'GPU')}"
            yield f"line {line}: {of_them}, and {project.name} itself {has} ({path}.guaranteed); {shared}"
        if not project.weight and not has:
            yield f"line {line}: project {project.name} never gets a GPU ({path}): its weight and its guarantee are 0"


def _label(value: Any, path: str, what: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise wrong(path, value, what)
    return value


def _gpus(row: Mapping[str, Any], key: str, path: str) -> int | None:
    value = whole(row, key, path)
    if value is not None and value > MAX_GPUS:
        raise wrong(join(path, key), value, f"{MAX_GPUS} GPUs at most")
    return value


def _number(row: Mapping[str, Any], key: str, path: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_WEIGHT:
        raise wrong(join(path, key), value, f"a number, 0 to {MAX_WEIGHT}")
    return value


def _fairness(row: Mapping[str, Any]) -> float:
    value = row.get("fairness", 0.0)
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise wrong(
            "fairness", value, "a number from 0, for an early end on average, to 1, where all jobs weigh the same"
        )
    return float(value)


def _seconds(row: Mapping[str, Any], key: str, path: str, default: float) -> float:
    value = seconds(row, key, path)
    return default if value is None else value
