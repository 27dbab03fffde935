"""What this project ships is clean, and whatever a file holds, the linter says something about it and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_launcher.lint import lint
from tests.support.lint.cases import CASES
from tests.support.lint.launcher_cases import BLOCK, nodes_pod, refer
from tests.support.lint.launcher_cases import given as given_parameters
from tests.support.lint.pod_cases import patch
from tests.support.places import ROOT

SHIPPED = sorted(
    [*ROOT.glob("tests/golden/**/*.yaml"), *ROOT.glob("pipelines/**/*.yaml"), *ROOT.glob("components/**/*.yaml")]
)
MANIFESTS = sorted(ROOT.glob("manifests/**/*.yaml"))
IGNORED = ("nothing-to-lint",)
"""Of a component's metadata and the like."""

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(),
    st.sampled_from(["", "x", "{{", "{{x}}", "a: [", "1", "\n", "a=b", "(", "ü"]),
    st.lists(st.integers(), max_size=1),
    st.dictionaries(st.sampled_from(["name", "a"]), st.integers(), max_size=1),
)


def test_there_is_something_that_is_shipped() -> None:
    assert SHIPPED and MANIFESTS


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_shipped_is_clean(file: Path) -> None:
    assert [one for one in lint({str(file): file.read_text()}) if one.rule not in IGNORED] == []


def test_the_manifests_are_clean_together() -> None:
    assert [one for one in lint({str(file): file.read_text() for file in MANIFESTS}) if one.rule not in IGNORED] == []


def test_a_field_that_only_a_newer_pod_has_is_no_error() -> None:
    text = patch("resources: {limits: {cpu: 1}}\nvolumes: [{name: a, image: {reference: b}}]")
    assert "error" not in {one.severity for one in lint({"a.yaml": text})}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_value_anywhere_is_borne(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([case.bad for case in CASES if case.rule not in ("yaml-syntax", *IGNORED)]))
    documents = list(yaml.load_all(text, Loader=yaml.BaseLoader))
    holder: Any = documents
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = data.draw(STRANGE)
    for one in lint({"a.yaml": yaml.safe_dump_all(documents)}):
        assert one.line > 0 and one.reason and one.fix


@given(st.text(max_size=60))
def test_any_text_is_borne(text: str) -> None:
    assert all(one.line > 0 for one in lint({"a.yaml": text}))


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 3000 + "]" * 3000,
        "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9 if n else ['1'])}]\n" for n in range(9)),
        "kind: Workflow\nspec: {templates: [[[1]]], arguments: 5}\nmetadata: []\n",
        "kind: List\nitems: {a: 1}\n",
        "root: {dag: {tasks: [1]}}\ndeploymentSpec: 5\ncomponents: []\n",
        "? [a]\n: b\n",
        "a: \x00\n",
        'kind: Workflow\nspec: {podSpecPatch: "a: [\\n"}',
    ],
)
def test_what_is_hard_to_read_is_found(text: str) -> None:
    assert lint({"a.yaml": text})


STRANGE_TEMPLATES = (
    "kind: Pod\nspec: !!bool x\n",
    "kind: Pod\nspec: !!timestamp foo\n",
    "kind: Pod\nspec: " + "[" * 600 + "]" * 600 + "\n",
    "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9 if n else ['1'])}]\n" for n in range(9)),
)


@pytest.mark.parametrize("template", STRANGE_TEMPLATES, ids=["bool", "time", "deep", "large"])
def test_a_strange_pod_template_is_found(template: str) -> None:
    documents: Any = list(yaml.safe_load_all(nodes_pod()))
    parameters = documents[0]["spec"]["templates"][0]["steps"][0][0]["arguments"]["parameters"]
    (given,) = [one for one in parameters if one["name"] == "pod_template"]
    given["value"] = template
    found = lint({"a.yaml": yaml.safe_dump_all(documents)})
    assert [one.rule for one in found] == ["elastic-argument"] and "pod template" in found[0].reason


def test_a_number_without_quotes_is_its_own_finding_and_no_other() -> None:
    text = nodes_pod(gpus="4", ranks="4").replace("'4'", "4")
    assert [one.rule for one in lint({"a.yaml": text})] == ["parameter-not-string"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("nodes", "--nodes"), ("match", "--queue --data"), ("share", "it's --share"), ("max_runtime", "--max-runtime 5x")],
)
def test_a_message_leaves_the_users_words_as_they_are(name: str, value: str) -> None:
    (found,) = lint({"a.yaml": given_parameters(f'{{name: {name}, value: "{value}"}}')})
    assert found.reason.startswith(f"{name} is ") and value in found.reason


def test_a_message_shows_placeholders_as_they_were_written() -> None:
    text = patch("tolerations: {key: '{{inputs.parameters.a}}-{{inputs.parameters.b}}'}")
    (found,) = lint({"a.yaml": text})
    assert "{'key': '{{inputs.parameters.a}}-{{inputs.parameters.b}}'} must be a list" in found.reason


def test_a_number_that_is_too_long_is_found() -> None:
    text = refer(BLOCK.format("2"), ranks="9" * 5000)
    assert [one.rule for one in lint({"a.yaml": text})] == ["elastic-argument"]


def test_a_script_that_argo_fills_in_is_not_judged_and_one_that_is_too_long_is() -> None:
    def rules(script: str) -> list[tuple[str, bool]]:
        (document,) = yaml.safe_load_all(given_parameters("{name: script, value: ''}"))
        parameters = document["spec"]["templates"][0]["steps"][0][0]["arguments"]["parameters"]
        parameters[:] = [{"name": "script", "value": script}]
        return [(one.rule, "bytes" in one.reason) for one in lint({"a.yaml": yaml.safe_dump(document)})]

    assert rules("import torch\nprint('{{workflow.parameters.lr}}')\n") == []
    assert rules("import torch\n" + "#" * 140_000) == [("elastic-argument", True)]
