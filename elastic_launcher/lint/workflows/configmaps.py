"""Checks that parameters that come from a ConfigMap get its value, as far as the files show it.

Argo sees only ConfigMaps with a label of their own; of another one it says that it is not there, or, where the
parameter has a default, silently takes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import Workflow, is_open

LABEL = "workflows.argoproj.io/configmap-type"
LABEL_VALUE = "Parameter"
_PARAMETERS = "parameters"


def check_configmaps(workflow: Workflow, configmaps: Sequence[Node]) -> Iterator[Finding]:
    """Finds parameters whose ConfigMap is not among those of all files, or lacks the key."""
    for source, reference in _references(workflow.spec):
        yield from _reference(source, reference, _meant(workflow, reference, configmaps))


def _references(spec: Node) -> Iterator[tuple[Node, Node]]:
    """Yields where parameters come from: ``valueFrom``, and its reference to a ConfigMap."""
    for node in spec.walk():
        if node.path and node.path[-1] == _PARAMETERS:
            for parameter in node.items:
                source = parameter.at("valueFrom")
                if (reference := source.at("configMapKeyRef")).there:
                    yield source, reference


def _meant(workflow: Workflow, reference: Node, configmaps: Sequence[Node]) -> Node | None:
    """Returns the ConfigMap that a reference means, if it is among the files."""
    for one in configmaps:
        spaces = {text for holder in (one, workflow.node) if (text := holder.at("metadata", "namespace").text)}
        if one.at("metadata", "name").text == reference.at("name").text and len(spaces) < 2:
            return one
    return None


def _reference(source: Node, reference: Node, configmap: Node | None) -> Iterator[Finding]:
    name, key, default = reference.at("name").text, reference.at("key"), source.at("default").there
    if reference.at("optional").there:
        reason = '"optional" is not honoured: without the key the step ends in an error all the same'
        yield finding("configmap-optional", reference.at("optional"), reason, "write a default beside configMapKeyRef")
    if not default:
        reason = (
            f'without a default the step ends in an error where ConfigMap "{name}", its label or the key is missing'
        )
        yield finding("configmap-default", reference, reason, "write a default beside configMapKeyRef")
    if configmap is None:
        return
    if configmap.at("metadata", "labels", LABEL).text != LABEL_VALUE:
        instead = "the default is taken silently" if default else "the step ends in an error"
        reason = f'ConfigMap "{name}" lacks the label by which Argo sees it: {instead}'
        yield finding("configmap-label", configmap.at("metadata"), reason, f'add the label {LABEL}: "{LABEL_VALUE}"')
    elif key.text and not is_open(key.text) and not configmap.at("data", key.text).there:
        instead = "the default is taken silently" if default else "the step ends in an error"
        reason = f'ConfigMap "{name}" has no key "{key.text}": {instead}'
        yield finding("configmap-key", key, reason, f"write one of its keys: {', '.join(configmap.at('data').fields)}")
