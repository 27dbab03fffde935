"""Checks the names of objects, and the words in their fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.workflow import Workflow

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PREFIX = re.compile(rf"(?:{_LABEL}\.)*(?:[a-z0-9][-a-z0-9]*)?\.?")
LONGEST = {"Workflow": 63, "CronWorkflow": 52}
"""A workflow's name is a label of its pods; a cron's gets eleven characters more for each workflow."""
_LONGEST_OF_ALL = 253
_CHOICES = (
    (("podGC", "strategy"), ("OnPodCompletion", "OnPodSuccess", "OnWorkflowCompletion", "OnWorkflowSuccess")),
    (("artifactGC", "strategy"), ("OnWorkflowCompletion", "OnWorkflowDeletion", "Never")),
)
_CONCURRENCY = ("Allow", "Forbid", "Replace")
SHUTDOWNS = ("Stop", "Terminate")


def check_names(workflow: Workflow) -> Iterator[Finding]:
    """Finds a name that the API server refuses."""
    metadata = workflow.node.at("metadata")
    name, prefix = metadata.at("name"), metadata.at("generateName")
    longest = LONGEST.get(workflow.kind, _LONGEST_OF_ALL)
    if name.text:
        if not _NAME.fullmatch(name.text) or len(name.text) > longest:
            reason = (
                f'"{name.text}" can\'t be the name of a {workflow.kind}; the API server or the controller refuses it'
            )
            fix = f"write small letters, digits, - and ., from a letter or digit to one, {longest} characters at most"
            yield finding("metadata-name", name, reason, fix)
    elif prefix.text:
        if not _PREFIX.fullmatch(prefix.text):
            reason = f'names that begin with "{prefix.text}" can\'t be names; the API server refuses them'
            yield finding("metadata-name", prefix, reason, "write small letters, digits, - and .")
    elif not name.there and not prefix.there:
        reason = "it has no name; the API server refuses it"
        yield finding("metadata-name", metadata, reason, "write metadata.name, or generateName and `kubectl create`")


def check_choices(workflow: Workflow) -> Iterator[Finding]:
    """Finds words that are none of those that a field takes."""
    shutdown = workflow.spec.at("shutdown")
    if shutdown.text and shutdown.text not in SHUTDOWNS:
        reason = f'"{shutdown.text}" is no way to shut down: it is ignored, and the workflow runs'
        yield finding("shutdown", shutdown, reason, f"write {' or '.join(SHUTDOWNS)}, or take it out")
    fields = [(workflow.spec.at(*keys), words) for keys, words in _CHOICES]
    fields.append((workflow.node.at("spec", "concurrencyPolicy"), _CONCURRENCY))
    for field, words in fields:
        if field.text and field.text not in words:
            reason = f'"{field.text}" is none of the words that this field takes; the API server refuses it'
            yield finding("unknown-choice", field, reason, f"write one of {', '.join(words)}")
