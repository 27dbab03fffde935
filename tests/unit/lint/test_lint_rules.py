"""Every rule finds its mistake, in its line, and nothing else; and nothing where the mistake is mended."""

from __future__ import annotations

import pytest

from elastic_launcher.lint import RULES, lint
from tests.unit.lint import launcher_cases, pipeline_cases, pod_cases, retry_cases, workflow_cases
from tests.unit.lint.case import Case

CASES = [
    case for table in (workflow_cases, retry_cases, pod_cases, launcher_cases, pipeline_cases) for case in table.CASES
]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_a_rule_finds_its_mistake(case: Case) -> None:
    assert case.lines, "the case marks no line"
    found = lint({"a.yaml": case.bad})
    assert [(one.rule, one.line) for one in found] == [(case.rule, line) for line in case.lines], found
    assert all(one.file == "a.yaml" and one.reason and one.fix for one in found)


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_what_is_mended_is_clean(case: Case) -> None:
    assert lint({"a.yaml": case.good}) == []
