"""What the next step may have, by the hints as they stand; and what makes the planning step red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.kfp import elastic_plan
from elastic_launcher.kfp_steps import plan
from elastic_launcher.kfp_steps.plan import plan_step
from elastic_launcher.pipeline_step import StepFailed
from tests.support import hint_documents


def given(**parameters: Any) -> dict[str, Any]:
    return {key: one.default for key, one in elastic_plan.component_spec.inputs.items()} | parameters


@pytest.fixture
def hints(tmp_path: Path) -> Path:
    path = tmp_path / "hints.json"
    path.write_text(
        hint_documents.text(hint_documents.hint(5, match={"queue": "a"}), hint_documents.hint(2, match={"job": "b"}))
    )
    return path


@pytest.mark.parametrize(
    ("parameters", "nodes", "gpus"),
    [
        ({"match": {"queue": "a"}, "max_nodes": 8}, 5, "5"),
        ({"match": {"queue": "a"}, "max_nodes": 3}, 3, "3"),
        ({"match": {"queue": "a"}, "max_nodes": 8, "nproc_per_node": 2}, 2, "4"),
        ({"match": {"queue": "a"}, "max_nodes": 8, "global_batch_size": 4}, 4, "4"),
        ({"match": {"queue": "a"}, "name": "b", "max_nodes": 8}, 2, "2"),
    ],
)
def test_the_size_is_what_the_hints_give(hints: Path, parameters: dict[str, Any], nodes: int, gpus: str) -> None:
    found = plan_step(given(hints=str(hints), **parameters))
    assert found[:2] == (nodes, gpus)
    assert "allowed" in found[2]


def test_line_breaks_and_spaces_around_a_text_are_not_part_of_it(hints: Path) -> None:
    assert plan_step(given(hints=f" {hints}\n", match={"queue": "a"}, name="\n", max_nodes=8))[0] == 5


def test_the_parts_of_all_trials_are_the_whole(hints: Path) -> None:
    parts = [
        plan_step(given(hints=str(hints), match={"queue": "a"}, max_nodes=8, share=f"{number}/3"))[0]
        for number in (1, 2, 3)
    ]
    assert parts == [2, 2, 1]


def test_gpus_are_a_text_for_the_accelerator_limit() -> None:
    assert elastic_plan.component_spec.outputs["gpus"].type == "String"


def test_without_hints_it_is_the_most() -> None:
    assert plan_step(given(max_nodes=3, nproc_per_node=2))[:2] == (3, "6")


def test_there_are_no_more_ranks_than_samples() -> None:
    assert plan_step(given(max_nodes=4, global_batch_size=1))[:2] == (1, "1")
    assert plan_step(given(max_nodes=4, nproc_per_node=2, global_batch_size=7))[:2] == (3, "6")


def test_hints_that_are_not_there_give_the_fewest(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    nodes, _, why = plan_step(given(hints=missing, min_nodes=2, max_nodes=8))
    assert nodes == 2
    assert "missing.json" in why
    with pytest.raises(StepFailed, match="require_hints asks for them"):
        plan_step(given(hints=missing, require_hints=True))


def test_less_than_the_minimum_is_red_and_says_so(hints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan_step(given(hints=str(hints), name="b", min_nodes=3, max_nodes=8))
    assert ended.value.code == 76
    assert "fewer than the job's minimum" in capsys.readouterr().out


def test_quota_is_waited_for(hints: Path) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            hints.write_text(hint_documents.text(hint_documents.hint(3, match={"job": "b"})))

    wanted = given(hints=str(hints), name="b", min_nodes=3, max_nodes=8, wait_for_quota=60)
    assert plan_step(wanted, lambda: sum(slept), sleep)[0] == 3
    assert slept == [plan.LOOK_SECONDS] * 2


@pytest.mark.parametrize(
    "broken", [None, "{", '{"apiVersion": "elastic-hints/v1", "hints": [{"gpus": {"allowed": -2}}]}']
)
def test_an_update_that_can_not_be_read_keeps_the_last_document_while_quota_is_waited_for(
    hints: Path, broken: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            hints.unlink() if broken is None else hints.write_text(broken)
        elif len(slept) == 3:
            hints.write_text(hint_documents.text(hint_documents.hint(4, match={"job": "b"})))

    wanted = given(hints=str(hints), name="b", min_nodes=3, max_nodes=8, wait_for_quota=60, require_hints=True)
    assert plan_step(wanted, lambda: sum(slept), sleep)[0] == 4
    assert len(slept) == 3
    told = [line for line in capsys.readouterr().out.splitlines() if "the last good document stays in force" in line]
    assert len(told) == 2
    assert all("hints: " in line and "hints.json" in line for line in told)


@pytest.mark.parametrize(("said", "waited"), [(0, 12), (7, 7)])
def test_quota_is_waited_for_as_the_hints_say_unless_the_parameter_says_it(
    hints: Path, said: float, waited: float
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        hints.unlink(missing_ok=True)

    hints.write_text(hint_documents.text(hint_documents.hint(1, waitSeconds=12)))
    with pytest.raises(SystemExit) as ended:
        plan_step(given(hints=str(hints), min_nodes=3, max_nodes=8, wait_for_quota=said), lambda: sum(slept), sleep)
    assert (ended.value.code, sum(slept)) == (76, waited)


def test_hints_that_vanish_while_quota_is_waited_for_give_none(hints: Path) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        hints.unlink(missing_ok=True)

    with pytest.raises(SystemExit) as ended:
        plan_step(
            given(hints=str(hints), name="b", min_nodes=3, max_nodes=8, wait_for_quota=8), lambda: sum(slept), sleep
        )
    assert ended.value.code == 76


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, "--nodes is '3:2'"),
        ({"share": "2/1"}, "--share is '2/1'"),
        ({"match": {"colour": "red"}}, "--match has the unknown key 'colour'"),
        ({"nproc_per_node": 0}, "--nproc-per-node is '0'"),
        ({"require_hints": True}, "--require-hints needs --hints FILE"),
        ({"global_batch_size": -5}, "--global-batch-size is '-5'"),
        ({"wait_for_quota": -1.0}, "--wait-for-quota is"),
        ({"wait_for_quota": float("nan")}, "--wait-for-quota is"),
    ],
)
def test_a_bad_parameter_is_red_with_the_command_lines_message(parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(StepFailed, match=told) as failed:
        plan_step(given(**parameters))
    assert failed.value.exit_code == 2


def test_hints_that_are_none_are_red_with_their_place(hints: Path) -> None:
    hints.write_text(json.dumps({"apiVersion": "elastic-hints/v1", "hints": [{"gpus": {"allowed": -2}}]}))
    with pytest.raises(StepFailed, match=r"hints: .*hints.json: .*allowed"):
        plan_step(given(hints=str(hints)))
