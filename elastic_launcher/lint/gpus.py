"""Do a node's ranks have a GPU each? Where a workflow's container runs the launcher itself, or our template does."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.finding import Finding, finding
from elastic_launcher.lint.pod_patch import read_patch, within
from elastic_launcher.lint.tree import Node
from elastic_launcher.lint.workflow import PLACEHOLDER, Use, Workflow, is_open, main_containers

_GPU = "/gpu"
"""Ends the name of the resource, whoever makes them."""
_PROGRAMS = ("elastic-launcher", "elastic_launcher")
_RANKS = "--nproc-per-node"
_NODES = "--nodes"
_ENGINE = "--engine"


def check_gpus(workflow: Workflow) -> Iterator[Finding]:
    """Finds launchers whose pod has fewer GPUs than the fewest nodes in it have ranks."""
    for use in workflow.uses_of(ELASTIC_TRAIN):
        yield from _of_our_template(use)
    for template in workflow.templates():
        for container in main_containers(template):
            words = list(_words(container))
            if runs_launcher(container) and not _is_elsewhere(_value(words, _ENGINE)):
                yield from _limits(container, _value(words, _RANKS), _value(words, _NODES))


def runs_launcher(container: Node) -> bool:
    """Whether the launcher's name is among the words of a container's command."""
    return any(name in word for name in _PROGRAMS for word in _words(container))


def _of_our_template(use: Use) -> Iterator[Finding]:
    """Finds a patch of the step's pod that gives nodes, which are its processes, too few GPUs."""
    patch = use.value("pod_patch")
    if _is_elsewhere(_text(use, "engine")):
        return
    for container in read_patch(patch).at("containers").items:
        for found in _limits(container, *(_text(use, name) for name in ("nproc_per_node", "nodes"))):
            yield within(patch, found)


def _text(use: Use, name: str) -> str:
    """Returns a parameter's value; a placeholder where something else gives it."""
    value = use.value(name)
    return value.text if value.there or name not in use.parameters else PLACEHOLDER


def _is_elsewhere(engine: str) -> bool:
    return engine == "kubernetes" or is_open(engine)


def _limits(container: Node, ranks: str, nodes: str) -> Iterator[Finding]:
    """Finds limits that the launcher's own texts are too many for, as far as these are known."""
    each = int(ranks or "1") if (ranks or "1").isdecimal() else None
    least = nodes.partition(":")[0].strip()
    for name, limit in container.at("resources", "limits").fields.items():
        if name.endswith(_GPU) and each is not None:
            if (found := too_few(limit, each, int(least) if least.isdecimal() else 1)) is not None:
                yield found


def too_few(limit: Node, ranks: int, nodes: int = 1) -> Finding | None:
    """Returns the finding about a GPU limit that is too low, if it is.

    Args:
        limit: How many GPUs a pod has.
        ranks: Of each node.
        nodes: Fewest nodes in the pod.
    """
    gpus, wanted = limit.number, ranks * nodes
    if gpus is None or gpus == 0 or gpus >= wanted:  # none at all: a training on CPUs
        return None
    shown = f"its pod {gpus} GPU{'s' if gpus != 1 else ''}: it can never start"
    if nodes == 1:
        reason, fix = f"a node has {ranks} ranks, and {shown}", f"ask for {ranks} GPUs, or for {gpus} ranks per node"
    else:
        reason = f"{nodes} nodes at least have {wanted} ranks, and {shown}"
        fix = f"ask for {wanted} GPUs, or for fewer nodes at least"
    return finding("gpus-per-node", limit, reason, fix)


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
