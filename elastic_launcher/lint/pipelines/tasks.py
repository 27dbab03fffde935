"""The tasks of a compiled Kubeflow pipeline, each with the component around it and the container that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elastic_launcher.lint.documents.tree import Node

_FUNCTION = "--function_to_execute"


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the pipeline, in the component around it.

    Attributes:
        component: The component that it runs.
        container: The container of that, absent where it holds tasks itself.
    """

    node: Node
    around: Node
    component: Node
    container: Node

    @property
    def function(self) -> str:
        """The name of the Python function that its container runs, or ""."""
        words = [item.text for item in self.container.at("args").items]
        return words[words.index(_FUNCTION) + 1] if _FUNCTION in words[:-1] else ""


def tasks(document: Node) -> Iterator[Task]:
    """Yields the tasks of a compiled pipeline, however deep."""
    for around in (document.at("root"), *document.at("components").fields.values()):
        yield from tasks_of(document, around)


def tasks_of(document: Node, around: Node) -> Iterator[Task]:
    """Yields the tasks that a component, or the root, holds itself."""
    for node in around.at("dag", "tasks").fields.values():
        component = document.at("components", node.at("componentRef", "name").text)
        executor = component.at("executorLabel").text
        yield Task(node, around, component, document.at("deploymentSpec", "executors", executor, "container"))
