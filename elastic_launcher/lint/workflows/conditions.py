"""Checks the conditions of a resource template: label selectors over the resource's fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.workflow import Workflow, is_open

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!?\s*{_KEY}|{_KEY}\s*(?:==|!=|=)\s*{_VALUE}|{_KEY}\s*[<>]\s*-?[0-9]+"
    rf"|{_KEY}\s+(?:not)?in\s*\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))\s*"
)
_COMMA = re.compile(r",(?![^(]*\))")
"""A comma between requirements, none within a list."""
_CONDITIONS = ("successCondition", "failureCondition")


def check_conditions(workflow: Workflow) -> Iterator[Finding]:
    """Finds conditions that fail the step at once, while the resource that it made runs on."""
    for template in workflow.templates():
        for name in _CONDITIONS:
            condition = template.at("resource", name)
            requirements = _COMMA.split(condition.text)
            if condition.text and not is_open(condition.text) and not all(map(_REQUIREMENT.fullmatch, requirements)):
                reason = f'"{condition.text}" is no label selector: the step fails at once, and what it made runs on'
                fix = "write requirements, as status.succeeded == 2, or the name of a field that must exist"
                yield finding("success-condition", condition, reason, fix)
