"""Checks that an object has the ``apiVersion`` of its kind, without which no server accepts it."""

from __future__ import annotations

from collections.abc import Iterator

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import KINDS

ARGO = "argoproj.io/v1alpha1"
VERSIONS = {"PipelineVersion": "pipelines.kubeflow.org/v2beta1"}
"""Of a compiled pipeline as a manifest of Kubernetes."""


def is_workflow(document: Node) -> bool:
    """Whether a document is an object of Argo's API, or is meant as one."""
    if document.at("kind").text not in KINDS:
        return False
    group = document.at("apiVersion").text.rpartition("/")[0]
    return "." not in group or "argo" in group.lower()


def check_api_version(document: Node) -> Iterator[Finding]:
    """Finds an object of Argo's, or a manifest of a pipeline, whose ``apiVersion`` is missing or not its kind's."""
    kind, given = document.at("kind").text, document.at("apiVersion")
    wanted = VERSIONS.get(kind, ARGO)
    if given.text != wanted and (given.text or not given.there):  # what is no text is of the wrong type
        said = f'"{given.text}" is no apiVersion of a {kind}' if given.there else "it has no apiVersion"
        yield finding("api-version", given, f"{said}; the API server refuses it", f"write apiVersion: {wanted}")
