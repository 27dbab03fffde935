"""Where things are in an object of Argo's API: its spec, templates, containers and steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elastic_launcher.lint.tree import Node

KINDS = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
CALLED = ("WorkflowTemplate", "ClusterWorkflowTemplate")
"""Kinds whose templates others call."""
POD_TYPES = ("container", "script", "containerSet", "resource", "data")
"""What makes a template one that has a pod."""
OUTER_TYPES = ("steps", "dag")
PLACEHOLDER = "{{"


@dataclass(frozen=True, slots=True)
class Use:
    """A place where a template from elsewhere is used.

    Attributes:
        reference: What names it.
        parameters: What it is given, by the parameters' names.
    """

    reference: Node
    parameters: Mapping[str, Node]

    @property
    def is_step(self) -> bool:
        """Whether it is one step, and not the whole workflow, which may be given more when it is submitted."""
        return self.reference.path[-1] == "templateRef"

    def value(self, name: str) -> Node:
        """Returns the value of a parameter; an absent node where it has none here."""
        return self.parameters.get(name, self.reference).at("value")


@dataclass(frozen=True, slots=True)
class Workflow:
    """An object of Argo's API.

    Attributes:
        kind: One of :data:`KINDS`.
        node: It.
    """

    kind: str
    node: Node

    @property
    def name(self) -> str:
        """Its name, or ""."""
        return self.node.at("metadata", "name").text

    @property
    def spec(self) -> Node:
        """The workflow's spec."""
        return self.node.at("spec", "workflowSpec") if self.kind == "CronWorkflow" else self.node.at("spec")

    @property
    def starts(self) -> bool:
        """Whether it is run as it is, and not only called by others."""
        return self.kind not in CALLED or self.spec.at("entrypoint").there

    def templates(self) -> Iterator[Node]:
        """Yields its templates, those that stand within a step included."""
        for template in self.spec.at("templates").items:
            yield template
            yield from (inline for step in steps(template) if (inline := step.at("inline")).there)

    def steps(self) -> Iterator[Node]:
        """Yields the steps and tasks of all templates."""
        for template in self.spec.at("templates").items:
            yield from steps(template)

    def uses_of(self, name: str) -> Iterator[Use]:
        """Yields where a template from elsewhere is used: by each step, or by a workflow that is it."""
        uses = [(step.at("templateRef"), step.at("arguments")) for step in self.steps()]
        for reference, arguments in (*uses, (self.spec.at("workflowTemplateRef"), self.spec.at("arguments"))):
            if reference.at("name").text == name:
                parameters = arguments.at("parameters").items
                yield Use(reference, {one.at("name").text: one for one in parameters})

    def all_templates(self) -> Iterator[Node]:
        """Yields its templates and what they all start from."""
        yield from self.templates()
        if (defaults := self.spec.at("templateDefaults")).there:
            yield defaults


def steps(template: Node) -> Iterator[Node]:
    """Yields the steps and tasks of a template."""
    for group in template.at("steps").items:
        yield from group.items
    yield from template.at("dag", "tasks").items


def main_containers(template: Node) -> Iterator[Node]:
    """Yields the containers that do a template's work."""
    for key in ("container", "script"):
        if (found := template.at(key)).there:
            yield found
    yield from template.at("containerSet", "containers").items


def containers(template: Node) -> Iterator[Node]:
    """Yields all containers of a template's pod."""
    yield from main_containers(template)
    yield from template.at("sidecars").items
    yield from template.at("initContainers").items


def is_open(text: str) -> bool:
    """Whether a text is known only when the workflow runs."""
    return PLACEHOLDER in text
