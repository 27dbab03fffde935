"""Checks that the containers of a template can start: their commands, volumes and amounts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import CALLED, Workflow, containers, is_open, main_containers

_QUANTITY = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?")
_AMOUNTS = ("limits", "requests")


def check_commands(workflow: Workflow) -> Iterator[Finding]:
    """Finds containers whose command Argo has to look up."""
    defaults = workflow.spec.at("templateDefaults")
    for template in workflow.templates():
        for container in main_containers(template):
            given = defaults.at(container.path[-1], "command")  # a containerSet's list is not merged with another
            if not (container.at("command").value or given.value):
                reason = (
                    "it has no command: Argo looks it up in the image's registry, and where that does not tell, the "
                    "workflow stays Running for ever"
                )
                yield finding("missing-command", container, reason, "write the command, also where the image has one")


def check_volumes(workflow: Workflow) -> Iterator[Finding]:
    """Finds mounts of volumes that are nowhere."""
    if workflow.spec.at("workflowTemplateRef").there:  # they may come from there
        return
    for template in workflow.templates():
        known = volumes(workflow, template)
        for mount in mounts(template):
            if mount.text and not is_open(mount.text) and mount.text not in known:
                yield _without(workflow, mount)


def _without(workflow: Workflow, mount: Node) -> Finding:
    if workflow.kind in CALLED:
        reason = (
            f'volume "{mount.text}" is declared neither by the template nor here: every workflow that calls it must'
        )
        return finding("volume-from-caller", mount, reason, "declare it under the template's own volumes")
    reason = f'there is no volume "{mount.text}": the step ends in an error when its pod is to be made'
    return finding("volume-mount", mount, reason, "declare it under volumes of the template or of the workflow's spec")


def volumes(workflow: Workflow, template: Node) -> set[str]:
    """Returns the names of the volumes that a template's pod can mount."""
    spec = workflow.spec
    declared = [
        *template.at("volumes").items,
        *spec.at("volumes").items,
        *spec.at("templateDefaults", "volumes").items,
    ]
    claims = (claim.at("metadata", "name").text for claim in spec.at("volumeClaimTemplates").items)
    return {volume.at("name").text for volume in declared} | set(claims)


def mounts(template: Node) -> Iterator[Node]:
    """Yields the names of the volumes that a template mounts."""
    for holder in (*containers(template), template.at("containerSet")):
        yield from (mount.at("name") for mount in holder.at("volumeMounts").items)


def check_quantities(workflow: Workflow) -> Iterator[Finding]:
    """Finds amounts of resources that are none."""
    for template in workflow.all_templates():
        for container in containers(template):
            for kind in _AMOUNTS:
                for amount in container.at("resources", kind).fields.values():
                    if amount.text and not is_quantity(amount.text):
                        yield _no_amount(amount)


def _no_amount(amount: Node) -> Finding:
    if is_open(amount.text):
        reason = f"{amount.text} can't stand here: the API server takes only a number with a unit"
        return finding("quantity", amount, reason, "write a number, and set what changes with podSpecPatch")
    reason = f'"{amount.text}" is no amount; the API server refuses it'
    return finding("quantity", amount, reason, "write a number with a unit, for example 2, 500m or 4Gi")


def is_quantity(text: str) -> bool:
    """Whether a text is an amount as Kubernetes writes them."""
    return _QUANTITY.fullmatch(text) is not None
