"""Checks that each rank of a node has a GPU, where a container runs the launcher or uses our template."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import Use, Workflow, is_open, main_containers
from elastic_launcher.lint.pods.launchers import launches, value
from elastic_launcher.lint.pods.pod_patch import read_patch, within
from elastic_launcher.options import read_whole

_GPU = "/gpu"
"""Ends the name of the resource, whoever makes them."""
_RANKS = "--nproc-per-node"
_NODES = "--nodes"
_ENGINE = "--engine"


def check_gpus(workflow: Workflow) -> Iterator[Finding]:
    """Finds launchers whose pod has fewer GPUs than the fewest nodes in it have ranks."""
    for use in workflow.uses_of(ELASTIC_TRAIN):
        yield from _of_our_template(use)
    for template in workflow.templates():
        for container in main_containers(template):
            for words in launches(container):
                if not _is_elsewhere(value(words, _ENGINE)):
                    yield from _limits(container, value(words, _RANKS), value(words, _NODES))


def _of_our_template(use: Use) -> Iterator[Finding]:
    """Finds a patch of the step's pod that gives nodes, which are its processes, too few GPUs."""
    patch = use.value("pod_patch")
    if _is_elsewhere(use.text("engine")):
        return
    for container in read_patch(patch).at("containers").items:
        for found in _limits(container, *(use.text(name) for name in ("nproc_per_node", "nodes"))):
            yield within(patch, found)


def _is_elsewhere(engine: str) -> bool:
    return engine == "kubernetes" or is_open(engine)


def _limits(container: Node, ranks: str, nodes: str) -> Iterator[Finding]:
    """Finds limits that the launcher's own texts are too many for, as far as these are known."""
    each = read_whole(ranks or "1")
    least = read_whole(nodes.partition(":")[0].strip())
    for name, limit in container.at("resources", "limits").fields.items():
        if name.endswith(_GPU) and each is not None:
            if (found := too_few(limit, each, 1 if least is None else least)) is not None:
                yield found


def too_few(limit: Node, ranks: int, nodes: int = 1) -> Finding | None:
    """Returns the finding about a pod's GPU limit that is too low for its fewest nodes and their ranks, if it is."""
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
