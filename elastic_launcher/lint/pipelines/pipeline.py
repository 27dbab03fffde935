"""Checks the elastic steps of a compiled Kubeflow pipeline for errors that the SDK compiles without a message.

A compiled pipeline is components (which hold tasks, or name an executor), executors (which hold a container), and a
root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.pipelines.inputs import check_inputs, check_outputs, check_settings
from elastic_launcher.lint.pipelines.tasks import Task, tasks, tasks_of
from elastic_launcher.lint.pipelines.texts import check_texts
from elastic_launcher.lint.pods.gpus import too_few

STEPS = ("elastic_train", "elastic_train_distributed")
"""Our components that train."""
UNCACHED = (*STEPS, "elastic_plan", "elastic_cleanup")
"""Our components whose outcome is not that of their inputs alone."""
LONG_DEADLINE = 24 * 3600
"""Seconds from the first attempt's start after which later ones are killed: a training may well take a day."""
_TASK_CONFIG = "TASK_CONFIG"
_NUMBERS = ("NUMBER_INTEGER", "NUMBER_DOUBLE")
_CHANNEL = re.compile(r"\{\{\$\.inputs\.parameters\[[\"']([^\"']+)[\"']\]\}\}")
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)s")
_RANKS = "nproc_per_node"
_LEAST = "min_nodes"
_ITEM_KEY = "-subvar-"
"""In the name that the SDK gives to ``item.key`` of a loop: ``pipelinechannel--rows-Output-loop-item-subvar-key``."""


def is_pipeline(document: Node) -> bool:
    """Whether a document is a compiled pipeline."""
    return bool(document.at("root", "dag", "tasks").fields and document.at("deploymentSpec", "executors").fields)


def check_pipeline(document: Node, platforms: Node) -> Iterator[Finding]:
    """Finds what a compiled pipeline, with its settings on each platform, does otherwise than it says."""
    for component in document.at("components").fields.values():
        yield from _passthroughs(component)
    yield from _absent(document, platforms)
    for task in tasks(document):
        if task.function in UNCACHED:
            yield from _caching(task)
        if task.function in STEPS or _holds_step(document, task.component, set()):
            yield from _deadline(task)
        if task.function in STEPS:
            yield from _gpus(task)
            yield from check_texts(document, task)


def _absent(document: Node, platforms: Node) -> Iterator[Finding]:
    """Finds what is asked for and is not there, each by the most special rule that knows it."""
    named: list[Finding] = []
    general: list[Finding] = []
    for task in tasks(document):
        named += [*_accelerator(document, task), *_item_keys(document, task), *_own_list(document, task)]
        general += [*check_inputs(document, task), *check_settings(document, task, platforms)]
    for component in (document.at("root"), *document.at("components").fields.values()):
        general += check_outputs(document, component)
    places = {one.where for one in named}
    yield from named
    yield from dict.fromkeys(one for one in general if one.where not in places)  # tasks may share a component


def _holds_step(document: Node, component: Node, above: set[str]) -> bool:
    """Whether a component holds a training step, however deep."""
    for task in tasks_of(document, component):
        name = task.node.at("componentRef", "name").text
        if task.function in STEPS or (name not in above and _holds_step(document, task.component, above | {name})):
            return True
    return False


def _passthroughs(component: Node) -> Iterator[Finding]:
    declared = component.at("taskConfigPassthroughs")
    parameters = component.at("inputDefinitions", "parameters").fields.values()
    if declared.items and not any(one.at("parameterType").text == _TASK_CONFIG for one in parameters):
        reason = (
            "settings of the task are taken away from its pod and handed to an argument, and there is none: resources, "
            "tolerations and the like are lost"
        )
        yield finding("passthrough-argument", declared, reason, "give the component an argument of type dsl.TaskConfig")


def _accelerator(document: Node, task: Task) -> Iterator[Finding]:
    accelerator = task.container.at("resources", "accelerator")
    count = accelerator.at("resourceCount")
    wanted = (count if count.there else accelerator.at("count")).text
    if wanted not in ("", "0") and not (accelerator.at("resourceType").there or accelerator.at("type").there):
        reason = "it has a GPU limit without a type: the pod gets no GPU at all, and the run is green"
        fix = 'call .set_accelerator_type("nvidia.com/gpu") on the task too'
        yield finding("accelerator-type", accelerator, reason, fix)
    channel = _CHANNEL.fullmatch(count.text)
    if channel is None:
        return
    given = task.node.at("inputs", "parameters", channel[1])
    asked = given.at("componentInputParameter").text
    if (kind := _type_of(document, task, channel[1])) in _NUMBERS:
        reason = f"its GPU limit comes from a {kind}: the pod gets no GPU at all, and the run is green"
        fix = "let it come from a str: a parameter or an output that is declared so"
        yield finding("accelerator-channel", given, reason, fix)
    elif asked and _ITEM_KEY not in asked and not task.around.at("inputDefinitions", "parameters", asked).there:
        reason = (
            f"its GPU limit asks for {asked}, which the SDK hands into no loop and no exit handler for a limit alone: "
            "a driver finds nothing of that name"
        )
        fix = "give the same value to a task in there as an argument too, or make it in there, as with elastic_plan"
        yield finding("accelerator-channel", given, reason, fix)


def _item_keys(document: Node, task: Task) -> Iterator[Finding]:
    """Finds keys of a loop's item that the SDK has sought where nothing has them: it never takes them out of the item.

    What is right names the item and takes the key out of it with a ``parameterExpressionSelector``.
    """
    for given in task.node.at("inputs", "parameters").fields.values():
        output = given.at("taskOutputParameter")
        if output.there:
            producer = task.around.at("dag", "tasks", output.at("producerTask").text, "componentRef", "name").text
            asked, has = output.at("outputParameterKey").text, document.at("components", producer, "outputDefinitions")
        else:
            asked, has = given.at("componentInputParameter").text, task.around.at("inputDefinitions")
        if _ITEM_KEY in asked and not has.at("parameters", asked).there:
            key = asked.rpartition(_ITEM_KEY)[2]
            reason = (
                f"the loop's item.{key} stands inside a text, a list or a dict, or in a setting of the task, such as a "
                f"GPU limit: there the SDK names what neither the item nor a task has, {asked}, and a driver finds "
                "nothing of that name"
            )
            fix = (
                f"give item.{key} as an argument by itself; where that can't be, as in a setting, loop over the "
                'values themselves, for example ["1", "2"]'
            )
            yield finding("loop-item-key", given, reason, fix)


def _own_list(document: Node, task: Task) -> Iterator[Finding]:
    """Finds the list that a loop goes over where a task inside the loop asks for it."""
    items = task.node.at("parameterIterator", "items", "inputParameter").text
    for given in _asking(document, task.component, items, set()) if items else ():
        reason = (
            f"the list that the loop goes over, {items}, is not there inside the loop: a backend takes it away, and "
            "the task's driver fails"
        )
        yield finding("loop-list", given, reason, "hand it on through a task before the loop, and use its output")


def _asking(document: Node, component: Node, name: str, seen: set[str]) -> Iterator[Node]:
    """Yields the inputs of the tasks in a component that ask for an input of its, however deep.

    The SDK hands a loop's own list on to no condition within, and lets the tasks there ask for it all the same. What
    declares an input of that name has one of its own. ``seen`` are the components that were looked into so far.
    """
    for inner in tasks_of(document, component):
        for given in inner.node.at("inputs", "parameters").fields.values():
            if given.at("componentInputParameter").text == name:
                yield given
        below = inner.node.at("componentRef", "name").text
        if below not in seen and not inner.component.at("inputDefinitions", "parameters", name).there:
            seen.add(below)
            yield from _asking(document, inner.component, name, seen)


def _type_of(document: Node, task: Task, name: str) -> str:
    """Returns the type of what a task's input gets, as far as the pipeline says it."""
    given = task.node.at("inputs", "parameters", name)
    if outer := given.at("componentInputParameter").text:
        return task.around.at("inputDefinitions", "parameters", outer, "parameterType").text
    if (output := given.at("taskOutputParameter")).there:
        producer = task.around.at("dag", "tasks", output.at("producerTask").text, "componentRef", "name").text
        outputs = document.at("components", producer, "outputDefinitions", "parameters")
        return outputs.at(output.at("outputParameterKey").text, "parameterType").text
    return task.component.at("inputDefinitions", "parameters", name, "parameterType").text


def _caching(task: Task) -> Iterator[Finding]:
    if (cached := task.node.at("cachingOptions", "enableCache")).value is True:
        reason = (
            f"with the same inputs, {task.function} is answered from the cache: nothing runs, and the step is green"
        )
        yield finding("caching", cached, reason, "call .set_caching_options(False) on the task")


def _deadline(task: Task) -> Iterator[Finding]:
    policy = task.node.at("retryPolicy")
    seconds = _SECONDS.fullmatch(policy.at("backoffMaxDuration").text)
    if policy.there and (seconds is None or float(seconds[1]) < LONG_DEADLINE):
        after = f"{float(seconds[1]):.0f} s" if seconds else "an hour"
        reason = f"an attempt that is a retry is killed {after} after the first one began, however well it trains"
        fix = "leave set_retry out, as the step goes on by itself; or give it a backoff_max_duration of days"
        yield finding("retry-deadline", policy, reason, fix)


def _gpus(task: Task) -> Iterator[Finding]:
    accelerator = task.container.at("resources", "accelerator")
    limit = accelerator.at("resourceCount") if accelerator.at("resourceCount").there else accelerator.at("count")
    ranks = _number(task, _RANKS)
    nodes = _number(task, _LEAST) if task.function == STEPS[0] else 1  # whose nodes are in its own pod
    if ranks is not None and (found := too_few(limit, ranks, nodes or 1)) is not None:
        yield found


def _number(task: Task, name: str) -> int | None:
    """Returns the number that a parameter has, given or by default; None where only the run knows."""
    given = task.node.at("inputs", "parameters", name)
    default = task.component.at("inputDefinitions", "parameters", name, "defaultValue")
    return given.at("runtimeValue", "constant").number if given.there else default.number
