"""Do a node's ranks have a GPU each? Where a workflow's container runs the launcher itself, or our template does."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.finding import Finding, finding
from elastic_launcher.lint.pod_patch import read_patch, within
from elastic_launcher.lint.tree import Node
from elastic_launcher.lint.workflow import Workflow, is_open, main_containers

_GPU = "/gpu"
"""Ends the name of the resource, whoever makes them."""
_PROGRAMS = ("elastic-launcher", "elastic_launcher")
_FLAG = "--nproc-per-node"
_ENGINE = "--engine"


def check_gpus(workflow: Workflow) -> Iterator[Finding]:
    """Finds launchers whose pod has fewer GPUs than a node has ranks."""
    for given in workflow.given_to(ELASTIC_TRAIN):
        yield from _of_our_template(given)
    for template in workflow.templates():
        for container in main_containers(template):
            words = list(_words(container))
            ranks = _value(words, _FLAG)
            if not any(name in word for name in _PROGRAMS for word in words) or _value(words, _ENGINE) == "kubernetes":
                continue
            if ranks.isdecimal():
                yield from _limits(container, int(ranks))


def _of_our_template(given: Mapping[str, Node]) -> Iterator[Finding]:
    """Finds a patch of the step's pod that gives nodes, which are its processes, too few GPUs."""
    engine, ranks, patch = given.get("engine"), given.get("nproc_per_node"), given.get("pod_patch")
    elsewhere = engine is not None and (engine.text == "kubernetes" or is_open(engine.text))
    if elsewhere or ranks is None or ranks.number is None or patch is None:
        return
    for container in read_patch(patch).at("containers").items:
        for found in _limits(container, ranks.number):
            yield within(patch, found)


def _limits(container: Node, ranks: int) -> Iterator[Finding]:
    for name, limit in container.at("resources", "limits").fields.items():
        if name.endswith(_GPU) and (found := too_few(limit, ranks)) is not None:
            yield found


def too_few(limit: Node, ranks: int) -> Finding | None:
    """Returns the finding about a GPU limit that is below the number of ranks, if it is."""
    gpus = limit.number
    if gpus is None or gpus == 0 or gpus >= ranks:  # none at all: a training on CPUs
        return None
    reason = f"a node has {ranks} ranks, and its pod {gpus} GPU{'s' if gpus != 1 else ''}: it can never start"
    return finding("gpus-per-node", limit, reason, f"ask for {ranks} GPUs, or for {gpus} ranks per node")


def _words(container: Node) -> Iterator[str]:
    for part in (*container.at("command").items, *container.at("args").items, container.at("source")):
        try:
            yield from shlex.split(part.text, comments=True)
        except ValueError:  # a shell's text with a quote of its own
            yield from part.text.split()


def _value(words: Sequence[str], flag: str) -> str:
    """Returns what a flag is given; "" where it is not."""
    for word, following in itertools.pairwise([*words, ""]):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return ""
