"""What a step tells the steps that follow it: whole, however it ended, and nothing where nobody reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.events import Event
from elastic_launcher.kfp import elastic_train
from elastic_launcher.launcher import launch
from elastic_launcher.launcher.step_outputs import OUTPUTS, outputs_of, tell_outputs
from elastic_launcher.report import measure
from elastic_launcher.variables import STEP_OUTPUTS
from elastic_launcher.workdir import claim
from tests.support import histories


def told_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "story",
    [histories.resized(), histories.troubled(), histories.interrupted(), histories.waiting(), histories.plain()],
    ids=range(5),
)
def test_each_output_of_a_job_is_what_its_events_say(story: histories.Story) -> None:
    told, metrics = outputs_of(story.events, 75, "stopped", "/work/job"), measure(story.events)
    assert list(told) == list(OUTPUTS)
    assert (told["exit_code"], told["reason"], told["job_dir"]) == ("75", "stopped", "/work/job")
    assert (int(told["steps"]), float(told["goodput"])) == (metrics.steps, metrics.goodput)
    assert (int(told["world_size_final"]), int(told["resizes_total"])) == (
        metrics.world_size_final,
        metrics.resizes_total,
    )
    assert json.loads(told["logged"]) == metrics.logged
    saved = [event["path"] for event in story.events if event.kind == "checkpoint_saved"]
    assert told["checkpoint"] == (saved[-1] if saved else "")


def test_the_newest_checkpoint_is_the_one_gone_on_from_until_there_is_another() -> None:
    began = Event("job_started", 1.0, 0, {"name": "bert", "resumed_step": 40, "resumed_path": "s3://b/step-00000040"})
    saved = Event("checkpoint_saved", 2.0, 1, {"step": 50, "path": "s3://b/step-00000050"})
    again = Event("job_started", 3.0, 0, {"name": "bert", "term": 2})
    assert outputs_of([began], 75, "", "")["checkpoint"] == "s3://b/step-00000040"
    assert outputs_of([began, saved, again], 75, "", "")["checkpoint"] == "s3://b/step-00000050"


def test_where_nothing_was_started_they_are_what_stands_for_them() -> None:
    told = outputs_of([], ExitCode.BAD_USAGE, "--nodes is '3'", "")
    assert {key: float(value) for key, value in told.items() if key in ("steps", "goodput")} == {
        "steps": 0,
        "goodput": 0,
    }
    assert {**told, "goodput": "0"} == {**OUTPUTS, "exit_code": "2", "reason": "--nodes is '3'"}


def test_they_have_kubeflows_names() -> None:
    assert set(elastic_train.component_spec.outputs) & set(OUTPUTS) == set(OUTPUTS) - {"logged", "checkpoint"}


def test_a_refused_step_tells_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elastic_launcher", "run", "--nodes=3", "--", "train.py"]
    environment = {STEP_OUTPUTS: str(tmp_path / "told"), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = told_in(tmp_path / "told")
    assert (ended.returncode, told["exit_code"]) == (2, "2")
    assert told["reason"].startswith("--nodes is '3'") and told["reason"] in ended.stderr
    assert told["job_dir"] == ""


def test_a_job_without_quota_tells_so_and_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEP_OUTPUTS, str(tmp_path / "told"))
    hints = tmp_path / "hints.json"
    none = {"gpus": {"guaranteed": 0, "allowed": 0, "limit": 4}}
    hints.write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": none}))
    config = JobConfig(script="train.py", work_dir=str(tmp_path / "job"), hints=str(hints))
    assert launch.launch(config, tmp_path) == ExitCode.NO_QUOTA
    told = told_in(tmp_path / "told")
    assert (told["exit_code"], told["job_dir"]) == ("76", str(tmp_path / "job"))
    assert "quota" in told["reason"] and "\n" not in told["reason"]


def test_a_job_that_was_done_before_tells_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = JobConfig(script="train.py", work_dir=str(tmp_path / "job"))
    with claim(config, tmp_path):
        lines = [event.to_line() for event in histories.resized().events]
        (tmp_path / "job" / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setenv(STEP_OUTPUTS, str(tmp_path / "told"))
    assert launch.launch(config, tmp_path) == ExitCode.DONE
    told = told_in(tmp_path / "told")
    assert told["exit_code"] == "0" and int(told["steps"]) > 0 and told["job_dir"] == str(tmp_path / "job")


def test_without_a_reader_nothing_is_written(tmp_path: Path) -> None:
    said: list[str] = []
    tell_outputs(0, "done", tmp_path / "no such job", said.append, {})
    assert said == []


def test_what_keeps_them_from_being_written_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "told").write_text("a file is in the way")
    tell_outputs(2, "bad", None, said.append, {STEP_OUTPUTS: str(tmp_path / "told")})
    assert said and said[0].startswith(f"the step's outputs could not be written to {tmp_path / 'told'}: ")


def test_a_name_that_is_no_utf_8_does_not_change_how_the_job_ended(tmp_path: Path) -> None:
    tell_outputs(2, "/data/\udcff is not there", None, pytest.fail, {STEP_OUTPUTS: str(tmp_path / "told")})
    told = told_in(tmp_path / "told")
    assert sorted(told) == sorted(OUTPUTS)
    assert told["reason"] == r"/data/\udcff is not there"
