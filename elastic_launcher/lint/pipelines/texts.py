"""Checks that texts reach our training steps unchanged; ``elastic_launcher.kfp`` takes care of constants.

A component that is loaded from its YAML does not, and a parameter of the pipeline comes as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elastic_launcher.kfp_steps.arrival import MOST, changed, json_size, revealed, too_long
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.pipelines.tasks import Task
from elastic_launcher.lint.pods.pod_patch import check_launchers_template

_WITHIN = "pipelinechannel--"
"""The prefix of an input's name within another."""
_OF_THE_STEP = ("KFP_POD_NAME", "KFP_POD_UID", "NAMESPACE", "HOSTNAME", "HOME", "PATH")
"""Variables of a step's container that a backend or an image sets."""


def check_texts(document: Node, task: Task) -> Iterator[Finding]:
    """Finds texts of a training step that Kubernetes changes, and those that no container can be started with."""
    own = (one.at("name").text for one in task.container.at("env").items)
    variables = frozenset((*_OF_THE_STEP, *own))
    given = {name: _constant(task, node) for name, node in task.node.at("inputs", "parameters").fields.items()}
    judged: set[int] = set()
    for name, constant in sorted(given.items(), key=lambda one: one[0].startswith(_WITHIN)):
        altered = ((text, part) for text in constant.walk() if (part := changed(text.text, variables)))
        text, part = next(altered, (constant, ""))
        if part and id(text) not in judged:
            judged.add(id(text))
            becomes = "one $" if part == "$$" else "a variable's value"
            reason = (
                f"{name.removeprefix(_WITHIN)} holds {part}, of which Kubernetes makes {becomes} on its way to the step"
            )
            fix = "give it as a constant to a task of elastic_launcher.kfp, or put what it holds into the image"
            yield finding("elastic-argument", text, reason, fix)
    if (template := given.get("pod_template")) is not None:
        yield from check_launchers_template(replace(template, value=revealed(template.value)))
    sizes = {name: json_size(constant.value) for name, constant in given.items()}
    if (size := sum(sizes.values())) > MOST:
        name = max(sizes, key=lambda one: sizes[one])
        said, _, fix = too_long(name, size).rpartition(": ")
        yield finding("elastic-argument", given[name], f"{said}: its container can't be started", fix)


def _constant(task: Task, given: Node) -> Node:
    """Returns the constant that an input is, or by default; an absent node where only the run knows."""
    if (asked := given.at("componentInputParameter").text) and task.around.path[-1:] == ("root",):
        return task.around.at("inputDefinitions", "parameters", asked, "defaultValue")
    return given.at("runtimeValue", "constant")
