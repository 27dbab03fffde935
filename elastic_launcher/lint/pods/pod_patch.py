"""Checks that a ``podSpecPatch`` takes effect, by the pod schema of the Kubernetes client.

Argo applies it when the pod is made: what is no field is ignored there, and what can't be read is an error without a
reason.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.engines.kubernetes.objects.template import QUOTA_KINDS, read_template
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.read import read
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import Workflow, main_containers
from elastic_launcher.lint.libraries import needed
from elastic_launcher.lint.pods.containers import is_quantity
from elastic_launcher.options import ConfigError, holds_text

STAND_IN = "elasticplaceholder"
"""The prefix of a substitute for a placeholder, which is known only at run time; its number and an ``x`` follow."""
_STAND_IN = re.compile(rf"{STAND_IN}([0-9]+)x")
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_OF = re.compile(r"(?P<kind>list|dict)[\[(](?:str, ?)?(?P<inner>.+)[\])]")
_OWN = ("main", "wait", "init")
"""Containers that each pod of Argo has."""
_PLUGIN = "artifact-plugin-"
_LISTS = ("containers", "initContainers")
_AMOUNTS = ("limits", "requests")
_DIRECTIVE = "$"
"""Begins the words of a strategic merge that are no fields."""
NEWER = frozenset(
    {
        ("V1Container", "restartPolicyRules"),
        ("V1EnvVarSource", "fileKeyRef"),
        ("V1Lifecycle", "stopSignal"),
        ("V1PodSecurityContext", "seLinuxChangePolicy"),
        ("V1PodSecurityContext", "supplementalGroupsPolicy"),
        ("V1PodSpec", "hostnameOverride"),
        ("V1PodSpec", "resources"),
        ("V1PodSpec", "workloadRef"),
        ("V1Volume", "image"),
        ("V1VolumeProjection", "podCertificate"),
    }
)
"""Fields that Kubernetes got after 1.30, the client's version beside kfp."""
_OF_NODES = "--pod-template="
_PARTS = (
    ("metadata", "V1ObjectMeta"),
    ("spec", "V1PodSpec"),
    *((kind, "tolerations", "list[V1Toleration]") for kind in QUOTA_KINDS),
)
"""What a pod template has that is the API's: where, and of which type."""
_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
_WORDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}


def check_pod_patches(workflow: Workflow) -> Iterator[Finding]:
    """Finds what a ``podSpecPatch`` says in vain, or what our template is given for one."""
    elsewhere = any(step.at("templateRef").there for step in workflow.steps())
    templates = list(workflow.all_templates())
    if (patch := workflow.spec.at("podSpecPatch")).text:
        known = None if elsewhere or not templates else {name for one in templates for name in _containers(one)}
        yield from _check(patch, known)
    defaults = set(_containers(workflow.spec.at("templateDefaults")))
    for template in templates:
        if (patch := template.at("podSpecPatch")).text:
            yield from _check(patch, defaults | set(_containers(template)))
    for use in workflow.uses_of(ELASTIC_TRAIN):
        if (argument := use.value("pod_patch")).text:
            yield from _check(argument, set(_OWN))


def check_pod_templates(workflow: Workflow) -> Iterator[Finding]:
    """Finds what the pod template of nodes says in vain, where our template or a launcher is given its text."""
    for use in workflow.uses_of(ELASTIC_TRAIN):
        yield from check_pod_template(use.value("pod_template"))
    for template in workflow.templates():
        for container in main_containers(template):
            for word in container.at("args").items:
                if word.text.startswith(_OF_NODES):
                    text = word.text.removeprefix(_OF_NODES).replace("$$", "$")  # as Kubernetes makes of it
                    yield from check_launchers_template(replace(word, value=text))


def check_launchers_template(given: Node) -> Iterator[Finding]:
    """Finds the same, and what the launcher refuses, in the text of a pod template that no other rule judges."""
    yield from check_pod_template(given)
    if not holds_text(given.text) or _PLACEHOLDER.search(given.text):
        return
    try:
        read_template(given.text)
    except ConfigError as error:
        yield finding("pod-template", given, f"{error}: the step ends with exit code 2", "mend what is named there")


def check_pod_template(given: Node) -> Iterator[Finding]:
    """Finds fields that pods don't have in the text of a pod template; whether it is one, others say."""
    if not holds_text(given.text):
        return
    documents, findings = _read(given)
    if findings or len(documents) != 1 or not isinstance(documents[0].value, dict):
        return
    root = documents[0]
    template = root.at("template") if root.at("kind").text == "PodTemplate" else root
    client = _client("The nodes' pod template is")
    for found in (one for *keys, declared in _PARTS for one in _walk(client, template.at(*keys), declared)):
        if found.rule == "pod-patch-field":
            reason = found.reason.replace("ignored, and the step runs", "dropped, and nodes run")
            yield within(given, replace(found, rule="pod-template", reason=reason))
        elif found.rule == "newer-field":
            yield within(given, found)


def _client(what: str) -> Any:
    return needed("kubernetes.client", f"{what} checked against the Kubernetes client's pod", "kubernetes")


def read_patch(patch: Node) -> Node:
    """Returns what a patch's text says of a pod; an absent node where that can't be read."""
    documents, findings = _read(patch)
    return documents[0] if documents and not findings else Node(patch.file, patch.line)


def within(patch: Node, found: Finding) -> Finding:
    """Returns a finding of the patch's text as one of the file, in the user's own words."""
    line = found.line if patch.text_line else patch.line
    where, reason, fix = (_own_words(patch, one) for one in (found.where, found.reason, found.fix))
    return Finding(patch.file, line, found.rule, f"{patch.where}: {where}", reason, fix)


def _own_words(patch: Node, said: str) -> str:
    own = _PLACEHOLDER.findall(patch.text)
    return _STAND_IN.sub(lambda found: str(own[int(found[1])]), said)


def _read(patch: Node) -> tuple[list[Node], list[Finding]]:
    numbers = itertools.count()
    text = _PLACEHOLDER.sub(lambda _: f"{STAND_IN}{next(numbers)}x", patch.text)
    return read(text, patch.file, patch.text_line or patch.line)


def _containers(template: Node) -> Iterator[str]:
    """Yields the names of the containers of a template's pod."""
    yield from _OWN
    for container in (*main_containers(template), *template.at("sidecars").items, *template.at("initContainers").items):
        if name := container.at("name").text:
            yield name


def _check(patch: Node, known: set[str] | None) -> Iterator[Finding]:
    documents, findings = _read(patch)
    if findings or len(documents) > 1:
        said = findings[0].reason if findings else "it has several documents"
        said = _own_words(patch, said)
        reason = f'the patch can\'t be read ({said}): the step ends with "Error applying PodSpecPatch", and no more'
        yield finding("pod-patch-syntax", patch, reason, "write JSON, or YAML in a block that begins with |")
        return
    if not documents or _STAND_IN.fullmatch(documents[0].text):
        return
    root = documents[0]
    if not isinstance(root.value, dict):
        reason = "the patch is no object: the step ends with an error when its pod is to be made"
        yield finding("pod-patch-syntax", patch, reason, "write fields of a pod's spec, as containers")
        return
    client = _client("podSpecPatch is")
    for found in (*_walk(client, root, "V1PodSpec"), *_unknown_containers(root, known)):
        yield within(patch, found)


def _walk(client: Any, node: Node, declared: str) -> Iterator[Finding]:
    """Finds fields and values that the schema does not have, from one type of the client on."""
    if not node.there or _is_stand_in(node):
        return
    inner = _OF.fullmatch(declared)
    if inner is not None:
        is_object = inner["kind"] == "dict"
        if not isinstance(node.value, dict if is_object else list):
            yield _mistyped(node, "an object" if is_object else "a list")
        elif is_object and node.path[-1] in _AMOUNTS:
            yield from _amounts(node)
        else:
            for child in (*node.fields.values(), *node.items):
                yield from _walk(client, child, inner["inner"])
        return
    model = getattr(client, declared, None)
    if model is not None and hasattr(model, "openapi_types"):
        yield from _object(client, node, model)
    elif declared in _KINDS and not _fits(node.value, declared):
        yield _mistyped(node, _WORDS[declared])


def _object(client: Any, node: Node, model: Any) -> Iterator[Finding]:
    if not isinstance(node.value, dict):
        yield _mistyped(node, "an object")
        return
    types: dict[str, str] = {name: model.openapi_types[key] for key, name in model.attribute_map.items()}
    for name, child in node.fields.items():
        if name in types:
            yield from _walk(client, child, types[name])
        elif (model.__name__, name) in NEWER:
            reason = f'"{name}" is a field since a Kubernetes after 1.30; an older one ignores it'
            yield finding("newer-field", child, reason, "see that the cluster is new enough")
        elif not name.startswith(_DIRECTIVE) and STAND_IN not in name:
            near = difflib.get_close_matches(name, types, 1)
            reason = f'pods have no field "{name}" there: it is ignored, and the step runs without it'
            yield finding("pod-patch-field", child, reason, f'write "{near[0]}"' if near else "take it out")


def _amounts(node: Node) -> Iterator[Finding]:
    for amount in node.fields.values():
        number = isinstance(amount.value, (int, float)) and not isinstance(amount.value, bool)
        if not number and not _is_stand_in(amount) and not is_quantity(amount.text):
            yield _mistyped(amount, "an amount, as 2, 500m or 4Gi")


def _unknown_containers(root: Node, known: set[str] | None) -> Iterator[Finding]:
    for key in _LISTS:
        for container in root.at(key).items:
            name = container.at("name")
            if not isinstance(container.value, dict) or _is_stand_in(name) or _DIRECTIVE + "patch" in container.fields:
                continue
            if not name.there:
                reason = "it names no container: the step ends with an error when its pod is to be made"
                yield finding("pod-patch-container", container, reason, "write name: main")
            elif known is not None and name.text not in known and not _adds(container):
                reason = f'the pod has no container "{name.text}": it would get one more, without an image'
                yield finding("pod-patch-container", name, reason, f"write one of {', '.join(sorted(known))}")


def _adds(container: Node) -> bool:
    """Whether a container is meant as one more, or is one that a plugin brings."""
    return container.at("image").there or container.at("name").text.startswith(_PLUGIN)


def _fits(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))


def _is_stand_in(node: Node) -> bool:
    return STAND_IN in node.text


def _mistyped(node: Node, wanted: str) -> Finding:
    shown = f'"{node.value}"' if isinstance(node.value, str) else f"{node.value}"
    reason = f"{shown} must be {wanted}: the step ends with an error when its pod is to be made"
    return finding("pod-patch-value", node, reason, f"write {wanted}")
