"""A finding of the linter, and its position."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.rules import RULES, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One error in a file.

    Attributes:
        line: The line that it is about, from 1.
        rule: The rule's name, which never changes.
        where: The place within the document, as ``spec.templates[0].container``; "" where there is none.
        reason: What is wrong, and what comes of it.
        fix: What to write instead.
    """

    file: str
    line: int
    rule: str
    where: str
    reason: str
    fix: str

    @property
    def severity(self) -> Severity:
        """Whether it fails the file."""
        return RULES[self.rule]

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Sorts the findings of one file as a reader meets them."""
        return self.line, self.where, self.rule, self.reason


def finding(rule: str, node: Node, reason: str, fix: str) -> Finding:
    """Returns the finding of a rule at a node."""
    return Finding(node.file, node.line, rule, node.where, reason, fix)
