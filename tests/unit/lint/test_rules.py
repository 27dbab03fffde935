"""Every rule finds its mistake, in its line, and nothing else; and nothing where the mistake is mended."""

from __future__ import annotations

import pytest

from elastic_launcher.lint import RULES, lint
from tests.support.lint.case import Case, workflow
from tests.support.lint.cases import CASES
from tests.support.lint.verdicts import DROPPED, LET_THROUGH, NAME, OF_FILES, OF_PIPELINES, REFUSED


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


def test_every_rule_has_one_verdict() -> None:
    verdicts = [OF_FILES, OF_PIPELINES, REFUSED, DROPPED, {NAME}, LET_THROUGH]
    assert sorted(rule for rules in verdicts for rule in rules) == sorted(RULES)


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_a_rule_finds_its_mistake(case: Case) -> None:
    assert case.lines, "the case marks no line"
    found = lint({"a.yaml": case.bad})
    assert [(one.rule, one.line) for one in found] == [(case.rule, line) for line in case.lines], found
    assert all(one.file == "a.yaml" and one.reason and one.fix for one in found)


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case.rule}" for index, case in enumerate(CASES)])
def test_what_is_mended_is_clean(case: Case) -> None:
    assert lint({"a.yaml": case.good}) == []


def test_each_mistake_of_a_workflow_of_a_thousand_steps_is_found_in_its_line() -> None:
    step = "\n  - - {name: s%d, template: work, arguments: {parameters: [{name: x, value: %d}]}}  # here"
    steps = "".join(step % (number, number) for number in range(1000))
    work = "- name: work\n  inputs: {parameters: [{name: x}]}\n  container: {image: python, command: [python]}"
    long = Case(
        "parameter-not-string", workflow(f"entrypoint: main\ntemplates:\n{work}\n- name: main\n  steps:{steps}"), ""
    )
    assert [(one.rule, one.line) for one in lint({"a.yaml": long.bad})] == [(long.rule, line) for line in long.lines]
