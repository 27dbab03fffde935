"""Checks that the launcher's own pod has the label ``elastic: "true"`` and the annotation for MIN:MAX."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.engines.kubernetes.objects.names import ELASTIC_LABEL, NODES_ANNOTATION
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import POD_TYPES, Workflow, main_containers
from elastic_launcher.lint.pods.launchers import launches

_WORDS = (("labels", ELASTIC_LABEL), ("annotations", NODES_ANNOTATION))


def check_elastic_label(workflow: Workflow) -> Iterator[Finding]:
    """Finds a word where no pod of a launcher gets it, unless the pods get it from elsewhere."""
    for kind, word in _WORDS:
        yield from _check(workflow, kind, word)


def _check(workflow: Workflow, kind: str, word: str) -> Iterator[Finding]:
    def of(template: Node) -> Node:
        return template.at("metadata", kind, word)

    spec = workflow.spec
    if spec.at("podMetadata", kind, word).there or of(spec.at("templateDefaults")).there:
        return
    fix = f"write it under metadata.{kind} of the template with the pod, or under spec.podMetadata.{kind}"
    templates = list(workflow.templates())
    pods = [one for one in templates if any(one.at(key).there for key in POD_TYPES)]
    launchers = [one for one in pods if any(map(launches, main_containers(one)))]
    elsewhere = any(workflow.uses_of(ELASTIC_TRAIN))
    # a script of one's own may call the launcher: where none is seen, each pod may be one
    if not any(of(pod).there for pod in (launchers if launchers or elsewhere else pods)):
        for place in (("metadata",), ("spec", "workflowMetadata"), ("spec", "workflowSpec", "workflowMetadata")):
            if (found := workflow.node.at(*place, kind, word)).there:
                yield finding("elastic-label", found, f"a workflow's {kind} are not those of its pods", fix)
    for template in templates:
        if template not in pods and (found := of(template)).there:
            reason = f"this template has no pod of its own, and the pods of its steps don't get its {kind}"
            yield finding("elastic-label", found, reason, fix)
