"""Checks that the inputs of each task in a compiled pipeline exist; the SDK compiles them unchecked.

What a task takes is an input that the component around it declares, or an output that a task beside it has; a
condition, a loop and a placeholder take inputs of their own task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.pipelines.tasks import Task

_KINDS = (("parameters", "Parameter"), ("artifacts", "Artifact"))
_OF_THE_TASK = re.compile(r"inputs\.(?:parameter_values|parameters|artifacts)\[[\"']([^\"']+)[\"']\]")
_ABSENT = "nothing of that name is there, and its driver fails when the run gets to it"
_FIX = (
    "give the same value to a task in there as an argument too, which hands it into the group; or make it in there, or "
    "write a constant"
)

_NAMES = frozenset(
    {
        "componentInputParameter",
        "componentInputArtifact",
        "inputParameter",
        "inputArtifact",
        "outputParameterKey",
        "outputArtifactKey",
        "producerTask",
        "producerSubtask",
    }
)
"""What holds the name of an input, an output or a task."""
_ITEM = "loop-item"
"""In the name of a loop's item."""
_FIX_OF_ITEMS = (
    "give the item, or its key, as an argument by itself; and loop over a parameter or a task's output, not over dicts "
    "that are written there"
)


def check_inputs(document: Node, task: Task) -> Iterator[Finding]:
    """Finds inputs of a task that the component around it does not have, and outputs that no task beside it has."""
    for kind, word in _KINDS:
        for given in task.node.at("inputs", kind).fields.values():
            yield from _given(document, task.around, given, kind, word)
    yield from _used(task)


def check_settings(document: Node, task: Task, platforms: Node) -> Iterator[Finding]:
    """Finds what a task's settings on a platform take, and the component around it does not have, likewise.

    ``platforms`` is what is set there, by platform, as by kfp-kubernetes.
    """
    executor = task.component.at("executorLabel").text
    for platform in platforms.fields.values():
        seen: set[str] = set()
        for node in platform.at("deploymentSpec", "executors", executor).walk():
            for found in _given(document, task.around, node, *_KINDS[0]):
                if found.reason not in seen:  # the SDK writes some of them twice, for old backends
                    seen.add(found.reason)
                    yield found


def check_names_in_manifest(pipeline: Node) -> Iterator[Finding]:
    """Finds names that are no texts in a manifest of a compiled pipeline.

    Kubernetes has more booleans than the SDK, which leaves n as it is.
    """
    for node in pipeline.walk():
        if node.path[-1:] and node.path[-1] in _NAMES and isinstance(node.value, bool):
            reason = f"Kubernetes reads this name as {str(node.value).lower()}: nothing of that name is there"
            yield finding("wrong-type", node, reason, "call it otherwise: y, n, on, off, yes and no are booleans there")


def check_outputs(document: Node, component: Node) -> Iterator[Finding]:
    """Finds outputs of a component with tasks that none of its tasks has."""
    for kind, word in _KINDS:
        for taken in component.at("dag", "outputs", kind).fields.values():
            for node in taken.walk():
                if (producer := node.at("producerSubtask")).there:
                    yield from _output(document, component, node, producer.text, node.at(f"output{word}Key").text, kind)


def _inputs(component: Node, kind: str) -> set[str]:
    return set(component.at("inputDefinitions", kind).fields)


def _given(document: Node, around: Node, given: Node, kind: str, word: str) -> Iterator[Finding]:
    asked, taken = given.at(f"componentInput{word}"), given.at(f"taskOutput{word}")
    if asked.text and asked.text not in _inputs(around, kind):
        reason = f"it asks for {asked.text}, which the component around it does not have: {_ABSENT}"
        yield finding("absent-input", given, reason, _FIX_OF_ITEMS if _ITEM in asked.text else _FIX)
    if taken.there:
        key = taken.at(f"output{word}Key").text
        yield from _output(document, around, given, taken.at("producerTask").text, key, kind)


def _output(document: Node, around: Node, taker: Node, producer: str, key: str, kind: str) -> Iterator[Finding]:
    task = around.at("dag", "tasks").fields.get(producer)
    if task is None:
        reason = f"it takes an output of {producer}, which is no task beside it: {_ABSENT}"
        yield finding("absent-input", taker, reason, "take the output in the group in which it is made")
        return
    component = document.at("components").fields.get(task.at("componentRef", "name").text)
    if component is not None and key not in component.at("outputDefinitions", kind).fields:
        reason = f"it takes the output {key} of {producer}, which has none of that name: {_ABSENT}"
        yield finding("absent-input", taker, reason, "take one of its outputs")


def _used(task: Task) -> Iterator[Finding]:
    """Finds names in conditions, loops and settings that are no inputs of the task."""
    inputs = {name for kind, _ in _KINDS for name in task.node.at("inputs", kind).fields}
    known = inputs | {name for kind, _ in _KINDS for name in _inputs(task.component, kind)}
    condition = task.node.at("triggerPolicy", "condition")
    places = [condition, *task.container.at("resources").walk(), task.container.at("image")]
    places += [one.at("value") for one in task.container.at("env").items]
    for place in places:
        for name in dict.fromkeys(_OF_THE_TASK.findall(place.text)):
            if name not in known:
                reason = f"it uses {name}, which is no input of the task: {_ABSENT}"
                yield finding("absent-input", place, reason, _FIX)
    for iterator, key in (("parameterIterator", "inputParameter"), ("artifactIterator", "inputArtifact")):
        items = task.node.at(iterator, "items", key)
        if items.text and items.text not in inputs:
            reason = f"its loop goes over {items.text}, which is no input of the task: {_ABSENT}"
            yield finding("absent-input", items, reason, "loop over an output or a parameter that is there")
