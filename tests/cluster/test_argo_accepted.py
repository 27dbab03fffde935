"""The API server, with Argo's whole kinds, as the referee: what we ship is taken, and what the linter finds judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pipelines.hera_examples.__main__ import HERE
from tests.support.cluster.argo_crds import argo_known
from tests.support.cluster.kubectl import made, refusal
from tests.support.lint import launcher_cases, pod_cases, retry_cases, workflow_cases
from tests.support.lint.case import Case
from tests.support.lint.verdicts import DROPPED, NAME, OF_FILES, REFUSED
from tests.support.manifests import KUSTOMIZATION, MANIFESTS

FILES = sorted(path for path in (MANIFESTS / "argo").rglob("*.yaml") if path.name != KUSTOMIZATION)
FILES += sorted(HERE.glob("*.yaml"))
NAMESPACE = "training"
"""Which the examples name; the others are tried there too."""

TABLES = (workflow_cases, retry_cases, pod_cases, launcher_cases)
CASES = [case for table in TABLES for case in table.CASES if case.rule not in OF_FILES]


@pytest.fixture(scope="module")
def argo() -> Iterator[None]:
    with argo_known(), made("namespace", NAMESPACE):
        yield


def taken_as(case: Case) -> str:
    """Returns with which strictness a file is taken that breaks a rule; "" if with none."""
    if case.rule in REFUSED or (case.rule == NAME and not long_name(case.bad)):
        return ""
    return "ignore" if case.rule in DROPPED else "strict"


def long_name(text: str) -> bool:
    """Whether all that is wrong with an object's name is its length: the server takes 253 characters, a label 63."""
    name = yaml.safe_load(text)["metadata"].get("name", "")
    return len(name) > 50 and name.islower() and name.isalnum()


@pytest.mark.usefixtures("argo")
@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_server_takes_what_is_shipped_as_it_is_written(file: Path) -> None:
    assert not refusal("--validate=strict", f"--namespace={NAMESPACE}", stdin=file.read_text())


@pytest.mark.usefixtures("argo")
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_the_server_says_of_a_mistake_what_is_said_of_its_rule(case: Case) -> None:
    wanted = taken_as(case)
    for strictness in ("ignore", "strict"):
        refused = refusal(f"--validate={strictness}", f"--namespace={NAMESPACE}", stdin=case.bad)
        assert bool(refused) == (wanted not in ("strict", strictness)), (strictness, refused)


@pytest.mark.usefixtures("argo")
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_the_server_takes_what_the_linter_finds_clean(case: Case) -> None:
    assert not refusal("--validate=strict", f"--namespace={NAMESPACE}", stdin=case.good)
