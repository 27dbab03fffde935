"""A rule's case: a document that breaks it, with the line in which it does, and the same without the mistake."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

HERE = "# here"
"""Stands at the end of the line of which the rule speaks."""


@dataclass(frozen=True, slots=True)
class Case:
    """What breaks a rule.

    Attributes:
        rule: The rule, and the only one that finds anything.
        bad: The file that breaks it.
        good: The file that doesn't.
    """

    rule: str
    bad: str
    good: str

    @property
    def lines(self) -> list[int]:
        """The lines that are found."""
        return [number for number, line in enumerate(self.bad.splitlines(), 1) if line.endswith(HERE)]


def workflow(spec: str, kind: str = "Workflow", name: str = "train") -> str:
    """Returns an object of Argo's API with a spec."""
    head = f"apiVersion: argoproj.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n"
    return head + indent(dedent(spec).strip("\n"), "  ") + "\n"


def template(fields: str, container: str = "{image: python, command: [python]}") -> str:
    """Returns a workflow of one template with a container."""
    head = f"entrypoint: main\ntemplates:\n- name: main\n  container: {container}\n"
    return workflow(head + indent(dedent(fields).strip("\n"), "  "))
