"""Checks a set of files: sorts their documents by kind, and applies the checks of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.read import read
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import KINDS, Workflow
from elastic_launcher.lint.pipelines.inputs import check_names_in_manifest
from elastic_launcher.lint.pipelines.pipeline import check_pipeline, is_pipeline
from elastic_launcher.lint.pods.containers import check_commands, check_quantities, check_volumes
from elastic_launcher.lint.pods.elastic_label import check_elastic_label
from elastic_launcher.lint.pods.gpus import check_gpus
from elastic_launcher.lint.pods.pod_patch import check_pod_patches, check_pod_templates
from elastic_launcher.lint.workflows.api_version import VERSIONS, check_api_version, is_workflow
from elastic_launcher.lint.workflows.arguments import check_arguments
from elastic_launcher.lint.workflows.conditions import check_conditions
from elastic_launcher.lint.workflows.configmaps import check_configmaps
from elastic_launcher.lint.workflows.names import check_choices, check_names
from elastic_launcher.lint.workflows.references import Library, check_references
from elastic_launcher.lint.workflows.retries import check_retries
from elastic_launcher.lint.workflows.schema import check_schema

CHECKS: tuple[Callable[[Workflow], Iterable[Finding]], ...] = (
    check_names,
    check_choices,
    check_retries,
    check_pod_patches,
    check_pod_templates,
    check_commands,
    check_volumes,
    check_quantities,
    check_conditions,
    check_elastic_label,
    check_gpus,
    check_arguments,
)
"""What is looked for in a workflow by itself."""
_PLATFORMS = "platforms"
"""Of what the tasks of a pipeline are set to there: in a document of its own after it, or beside it in a manifest."""


def lint(texts: Mapping[str, str]) -> list[Finding]:
    """Finds what is wrong with files, given as texts by name; what one refers to is looked for in all.

    Returns the findings by file and line.

    Raises:
        MissingLibrary: If a library is not installed that is needed for what the files hold.
    """
    documents: dict[str, list[Node]] = {}
    findings: dict[str, list[Finding]] = {}
    for file, text in texts.items():
        found, findings[file] = read(text, file)
        documents[file] = [one for document in found for one in _unpacked(document)]
    everything = [one for found in documents.values() for one in found]
    configmaps = [one for one in everything if one.at("kind").text == "ConfigMap"]
    library = _library(everything)
    nothing = not any(map(_is_linted, everything))
    for file, found in documents.items():
        if not findings[file] and (nothing or not any(_is_linted(one) or one.at("kind").text for one in found)):
            findings[file].append(_nothing(file, found))
        platforms = next((one.at(_PLATFORMS) for one in found if one.at(_PLATFORMS).there), Node(file, 1))
        for document in found:
            findings[file] += _check(document, platforms, configmaps, library)
    return [one for found in findings.values() for one in sorted(found, key=lambda found: found.order)]


def _unpacked(document: Node) -> Iterator[Node]:
    """Yields the objects of a document: of a list, its items; of a run's file, its pipeline."""
    if document.at("kind").text == "List":
        yield from document.at("items").items
    elif (inner := document.at("pipelineSpec")).there:
        yield inner
    else:
        yield document


def _pipeline(document: Node) -> Node:
    """Returns the compiled pipeline of a document, which may be a manifest of one; absent where it holds none."""
    spec = document.at("spec", "pipelineSpec") if document.at("kind").text in VERSIONS else document
    return spec if is_pipeline(spec) else Node(document.file, document.line)


def _is_linted(document: Node) -> bool:
    return is_workflow(document) or _pipeline(document).there


def _library(documents: Iterable[Node]) -> Library:
    found: dict[tuple[bool, str], Workflow] = {}
    for document in documents:
        if is_workflow(document):
            workflow = Workflow(document.at("kind").text, document)
            if workflow.kind in ("WorkflowTemplate", "ClusterWorkflowTemplate"):
                found[workflow.kind == "ClusterWorkflowTemplate", workflow.name] = workflow
    return found


def _check(document: Node, platforms: Node, configmaps: list[Node], library: Library) -> Iterator[Finding]:
    if (pipeline := _pipeline(document)).there:
        if pipeline is not document:
            platforms = document.at("spec", "platformSpec", _PLATFORMS)
            yield from check_api_version(document)
            yield from check_names_in_manifest(pipeline)
        yield from check_pipeline(pipeline, platforms)
    elif is_workflow(document):
        yield from check_api_version(document)
        workflow = Workflow(document.at("kind").text, document)
        yield from check_schema(document, workflow.kind)
        for check in CHECKS:
            yield from check(workflow)
        yield from check_configmaps(workflow, configmaps)
        yield from check_references(workflow, library)


def _nothing(file: str, found: list[Node]) -> Finding:
    kinds = sorted({one.at("kind").text or "a document of no kind" for one in found})
    holds = f"it holds {', '.join(kinds)}" if kinds else "it is empty"
    reason = f"{holds}: nothing in it was checked"
    return finding("nothing-to-lint", Node(file, 1), reason, f"give a {', '.join(KINDS)} or a compiled pipeline")
