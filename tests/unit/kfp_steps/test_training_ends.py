"""How the step of a training component ends: red or with a report, of this run alone, and never without a word."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.kfp_steps import own_pod, training
from elastic_launcher.kube.api import ApiError
from elastic_launcher.pipeline_step import StepFailed
from tests.support import kfp_bodies as bodies
from tests.support.kfp_bodies import NUMBERS, Step

RED = StepFailed("the training script failed (exit code 1). Its last lines:\nArithmeticError: no\n", 1)


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(tmp_path / "artifacts", monkeypatch)


@pytest.fixture
def claim(tmp_path: Path) -> dict[str, Any]:
    return bodies.claim(tmp_path / "work")


def test_a_failure_is_red_at_once(step: Step) -> None:
    step.fails = RED
    with pytest.raises(StepFailed, match="ArithmeticError: no"):
        step.run("elastic_train")


@pytest.mark.parametrize("code", [70, 75, 76])
def test_an_end_that_another_try_may_help_has_the_launchers_exit_code(step: Step, code: int) -> None:
    step.fails = StepFailed("preempted", code)
    with pytest.raises(SystemExit) as ended:
        step.run("elastic_train")
    assert ended.value.code == code


def test_a_failure_that_is_reported_ends_green_with_its_reason(step: Step, tmp_path: Path) -> None:
    step.fails = StepFailed(f"{RED} {{{{x}}}}", 1, tmp_path / "job")
    *_, code, reason = step.run("elastic_train", on_failure="report")
    assert code == 1
    assert "ArithmeticError: no" in reason and "{{" not in reason  # which Argo would fill in, on the way to a next step
    assert set(step.given["metrics"].metadata) == set(NUMBERS)
    assert "there is no report.html" in Path(step.given["timeline"].path).read_text()


@pytest.mark.parametrize("work_dir", [True, False])
def test_a_refusal_that_is_reported_has_no_other_runs_numbers(step: Step, tmp_path: Path, work_dir: bool) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({**NUMBERS, "logged": {"loss": 0.5}}))
    (tmp_path / "report.md").write_text("# of an earlier job")
    given = {"work_dir": str(tmp_path)} if work_dir else {}
    *outputs, reason = step.run("elastic_train", on_failure="report", keep_checkpoints=0, **given)
    assert outputs == [0, 0, 0, 0, "", 2]
    assert "--keep-checkpoints is '0'" in reason
    assert step.given["metrics"].metadata == dict.fromkeys(NUMBERS, 0)
    for name in ("timeline", "summary"):
        assert "Nothing was started: --keep-checkpoints is" in Path(step.given[name].path).read_text()


def test_events_that_are_none_cost_no_report(step: Step, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text("{}\n{garbled\n{}\n")
    step.fails = StepFailed(str(RED), 1, tmp_path)
    assert step.run("elastic_train", on_failure="report")[:6] == (0, 0, 0, 0, str(tmp_path), 1)
    assert f"{tmp_path}/events.jsonl" in capsys.readouterr().out


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_data_that_can_not_be_copied_are_told_with_their_place(
    step: Step, claim: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").write_text("pixels")
    data = SimpleNamespace(path=f"{tmp_path}/digits", uri="minio://mlpipeline/digits")
    given = {"task_config": bodies.task(**claim), "shared_dir": f"{tmp_path}/work", "data": data}
    monkeypatch.setattr(shutil, "copyfile", no_space)
    told = rf"data: {tmp_path}/digits can't be copied to {tmp_path}/work/.*: .*No space left on device"
    *outputs, reason = step.run("elastic_train_distributed", on_failure="report", **given)
    assert outputs == [0, 0, 0, 0, "", 70]
    assert re.search(told, reason)
    with pytest.raises(SystemExit) as ended:
        step.run("elastic_train_distributed", **given)
    assert ended.value.code == 70
    assert not step.asked


def test_a_model_that_can_not_be_copied_is_told_with_its_place(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.left = tmp_path / "jobs" / "1"
    step.left.mkdir(parents=True)
    (step.left / "metrics.json").write_text(json.dumps({**NUMBERS, "logged": {}}))
    monkeypatch.setattr(shutil, "copyfile", no_space)
    *outputs, reason = step.run("elastic_train", on_failure="report", work_dir=str(step.left))
    assert outputs == [2, 3, 0.9, 120, str(step.left), 70]
    assert f"model: {step.left}.model can't be copied to {step.given['model'].path}: " in reason


def test_a_folder_that_can_not_be_made_for_the_model_is_told(step: Step, claim: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "work" / "file").write_text("in the way")
    given = {"task_config": bodies.task(**claim), "shared_dir": f"{tmp_path}/work/file/digits"}
    *_, code, reason = step.run("elastic_train_distributed", on_failure="report", **given)
    assert code == 70
    assert f"model: no place can be made for it at {tmp_path}/work/file/digits" in reason


@pytest.mark.parametrize("name", ["elastic_train", "elastic_train_distributed"])
def test_a_script_that_leaves_no_model_is_told_of(
    step: Step, claim: dict[str, Any], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of_nodes = {"task_config": bodies.task(**claim), "shared_dir": f"{tmp_path}/work"}
    given = of_nodes if name == "elastic_train_distributed" else {}
    told = "the script left nothing at $ELASTIC_OUTPUT: the model artifact is empty"
    step.run(name, **given)
    assert told not in capsys.readouterr().out
    for path in tmp_path.rglob("model"):
        path.unlink()
    step.writes = {}
    assert step.run(name, **given)[5] == 0
    assert told in capsys.readouterr().out


def test_a_classification_that_can_not_be_read_costs_nothing(step: Step, capsys: pytest.CaptureFixture[str]) -> None:
    (step.folder / f"model{training.CLASSES}").write_bytes(b"\xff")
    assert step.run("elastic_train")[5] == 0
    assert "can't be shown ('utf-8' codec can't decode" in capsys.readouterr().out


def test_a_copy_of_the_data_that_can_not_be_removed_costs_nothing(
    step: Step,
    claim: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "digits").write_text("pixels")
    data = SimpleNamespace(path=f"{tmp_path}/digits", uri="minio://mlpipeline/digits")
    monkeypatch.setattr(training, "remove", no_space)
    shared = f"{tmp_path}/work"
    done = step.run("elastic_train_distributed", task_config=bodies.task(**claim), shared_dir=shared, data=data)
    assert done[5] == 0
    assert f"the copy of the data stays at {step.options['data']}: " in capsys.readouterr().out


def test_a_server_that_is_away_is_worth_another_attempt(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise ApiError(503, "", "the server is busy")

    monkeypatch.setattr(own_pod, "own_pod", away)
    with pytest.raises(SystemExit) as ended:
        step.run("elastic_train_distributed", shared_dir="s3://a/b")
    assert ended.value.code == 70
    *_, code, reason = step.run("elastic_train_distributed", shared_dir="s3://a/b", on_failure="report")
    assert (code, reason) == (70, "the step's own pod can't be read: the server is busy (exit code 70)")


@pytest.mark.parametrize("name", ["metrics", "timeline", "summary"])
def test_a_report_that_can_not_be_written_costs_no_training(
    step: Step, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (step.folder / name).mkdir()
    assert step.run("elastic_train") == (2, 3, 0.9, 120, "/jobs/1", 0, "done")
    assert f"{name}: {step.folder}/{name} can't be written: " in capsys.readouterr().out
    step.fails = RED
    assert step.run("elastic_train", on_failure="report")[5:] == (1, str(RED))
