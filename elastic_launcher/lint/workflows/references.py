"""Finds what a referenced template leaves behind: volumes, service account and pod garbage collection.

A ``templateRef`` brings the template alone; the rest of the spec that it is taken from stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import Workflow, is_open
from elastic_launcher.lint.pods.containers import mounts, volumes

COMPLETED = "OnPodCompletion"

Library = Mapping[tuple[bool, str], Workflow]
"""The templates among the files, by whether they are the cluster's, and by name."""


def check_references(workflow: Workflow, library: Library) -> Iterator[Finding]:
    """Finds what a workflow must say itself about the templates that it takes from elsewhere."""
    if not workflow.starts:
        return
    said: set[tuple[str, str, str]] = set()
    for step in workflow.steps():
        reference = step.at("templateRef")
        name = reference.at("name").text
        if not name or is_open(name):
            continue
        source = library.get((reference.at("clusterScope").value is True, name))
        for found in _reference(workflow, reference, source):
            if (found.rule, name, found.reason) not in said:  # once for all steps that take it
                said.add((found.rule, name, found.reason))
                yield found


def _reference(workflow: Workflow, reference: Node, source: Workflow | None) -> Iterator[Finding]:
    name, wanted = reference.at("name").text, reference.at("template").text
    ours = ELASTIC_TRAIN in (name, wanted)  # which may not be among the files
    template = next((one for one in source.templates() if one.at("name").text == wanted), None) if source else None
    if template is not None:
        yield from _volumes(workflow, reference, template)
    own_account = template is not None and template.at("serviceAccountName").there
    needs_account = source is not None and source.spec.at("serviceAccountName").there
    if (needs_account or (ours and source is None)) and not own_account:
        if not workflow.spec.at("serviceAccountName").there:
            reason = f"the service account of {name} does not come with its template: the namespace's default runs it"
            yield finding("template-ref-service-account", reference, reason, "write spec.serviceAccountName here")
    if (ours or (source is not None and source.spec.at("podGC").there)) and not workflow.spec.at("podGC").there:
        reason = (
            f"the pod garbage collection of {name} does not come with its template: after Stop or Terminate the step's "
            "pod stays, and what it owns keeps its GPUs"
        )
        yield finding("template-ref-pod-gc", reference, reason, f"write spec.podGC.strategy: {COMPLETED} here")


def _volumes(workflow: Workflow, reference: Node, template: Node) -> Iterator[Finding]:
    """Finds volumes that neither the template nor its caller declares."""
    known = {one.at("name").text for one in template.at("volumes").items} | volumes(workflow, reference)
    for name in sorted({mount.text for mount in mounts(template)} - known):
        if name and not is_open(name):
            reason = f'the template mounts volume "{name}", which does not come with it: the step ends in an error'
            yield finding("template-ref-volume", reference, reason, f'declare "{name}" under spec.volumes here')
