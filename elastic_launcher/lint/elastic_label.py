"""Can the label ``elastic: "true"`` be seen? The launcher reads it from its own pod, so it must get there."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_launcher.engines.kubernetes.identity import ELASTIC_LABEL
from elastic_launcher.lint.finding import Finding, finding
from elastic_launcher.lint.tree import Node
from elastic_launcher.lint.workflow import POD_TYPES, Workflow

_FIX = "write it under metadata.labels of the template with the pod, or under spec.podMetadata.labels"


def check_elastic_label(workflow: Workflow) -> Iterator[Finding]:
    """Finds the label where no pod gets it, unless the pods get it from elsewhere."""
    spec = workflow.spec
    if spec.at("podMetadata", "labels", ELASTIC_LABEL).there or _label(spec.at("templateDefaults")).there:
        return
    templates = list(workflow.templates())
    pods = [one for one in templates if any(one.at(key).there for key in POD_TYPES)]
    if not any(_label(pod).there for pod in pods):
        for place in (("metadata",), ("spec", "workflowMetadata"), ("spec", "workflowSpec", "workflowMetadata")):
            if (label := workflow.node.at(*place, "labels", ELASTIC_LABEL)).there:
                yield finding("elastic-label", label, "a workflow's labels are not those of its pods", _FIX)
    for template in templates:
        if template not in pods and (label := _label(template)).there:
            reason = "this template has no pod of its own, and the pods of its steps don't get its labels"
            yield finding("elastic-label", label, reason, _FIX)


def _label(template: Node) -> Node:
    return template.at("metadata", "labels", ELASTIC_LABEL)
