"""Finds the spec, templates, containers and steps of an object of Argo's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elastic_launcher.lint.documents.tree import Node

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
        template: The name of the template; "" for that which it starts with by itself.
        parameters: What it is given, by the parameters' names.
        is_step: Whether it is one step, and not the whole workflow.
        is_complete: Whether nothing more can be given when the workflow is submitted.
    """

    reference: Node
    template: str
    parameters: Mapping[str, Node]
    is_step: bool
    is_complete: bool

    def value(self, name: str) -> Node:
        """Returns the value of a parameter; an absent node where it has none here."""
        return self.parameters.get(name, self.reference).at("value")

    def text(self, name: str) -> str:
        """Returns the value of a parameter as a text; "" where it is not given, a placeholder where it is open."""
        value = self.value(name).value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (str, int, float)):  # a number that lacks its quotes is another finding
            return str(value)
        return PLACEHOLDER if name in self.parameters else ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """An object of Argo's API, of one of the :data:`KINDS`."""

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
        """Yields its templates, including those inline in a step."""
        for template in self.spec.at("templates").items:
            yield template
            yield from (inline for step in steps(template) if (inline := step.at("inline")).there)

    def steps(self) -> Iterator[Node]:
        """Yields the steps and tasks of all templates."""
        for template in self.spec.at("templates").items:
            yield from steps(template)

    def uses_of(self, name: str) -> Iterator[Use]:
        """Yields where a template from elsewhere is used: by each step, or by a workflow that is it."""
        for step in self.steps():
            if (reference := step.at("templateRef")).at("name").text == name:
                template = reference.at("template").text
                yield Use(reference, template, _parameters(step), is_step=True, is_complete=True)
        if (reference := self.spec.at("workflowTemplateRef")).at("name").text == name:
            template = self.spec.at("entrypoint").text
            is_complete = self.kind == "CronWorkflow"
            yield Use(reference, template, _parameters(self.spec), is_step=False, is_complete=is_complete)

    def all_templates(self) -> Iterator[Node]:
        """Yields its templates and what they all start from."""
        yield from self.templates()
        if (defaults := self.spec.at("templateDefaults")).there:
            yield defaults


def _parameters(giver: Node) -> dict[str, Node]:
    return {one.at("name").text: one for one in giver.at("arguments", "parameters").items}


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
