"""The Workflows of ``pipelines/hera_examples``: the YAML beside each is what it makes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hera.workflows import Workflow

from pipelines.hera_examples.__main__ import EXAMPLES, HERE, made
from tests.support.manifests import MANIFESTS, objects


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_yaml_beside_an_example_is_what_it_makes(name: str) -> None:
    assert (HERE / f"{name}.yaml").read_text() == made(name), "`make golden` writes it again"


def test_there_is_no_yaml_without_its_example() -> None:
    assert sorted(path.stem for path in Path(HERE).glob("*.yaml")) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_names_the_account_of_the_manifests_and_its_entrypoint(name: str) -> None:
    workflow: Workflow = importlib.import_module(f"pipelines.hera_examples.{name}").w
    spec = workflow.to_dict()["spec"]
    (account,) = objects(MANIFESTS / "overlays" / "argo", "ServiceAccount")
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert spec["entrypoint"] in {one["name"] for one in spec["templates"]}
    assert spec["podGC"]["strategy"]
