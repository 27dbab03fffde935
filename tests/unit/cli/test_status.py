"""``elastic-launcher status`` and ``report``: what they print, how they end, while a job runs and after."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from elastic_launcher.cli.report import report
from elastic_launcher.cli.status import document, placed, status
from elastic_launcher.host.lock import launcher_lives, process_start
from elastic_launcher.report.state import fold
from tests.support import histories
from tests.support.terminals import in_terminal

APP = typer.Typer()
APP.command("status")(status)
APP.command("report")(report)


def elastic_launcher(*arguments: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(one) for one in arguments])


def this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}


def a_process_that_has_ended() -> dict[str, Any]:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        started = process_start(process.pid)
    return {"host": socket.gethostname(), "pid": process.pid, "started": started}


def running(work_dir: Path, owner: dict[str, Any]) -> Path:
    histories.write(histories.resized().events[:-8], work_dir)
    (work_dir / "control.json").write_text('{"v":1,"url":"http://127.0.0.1:8123","term":1}')
    return histories.write_job(work_dir, **owner)


@pytest.mark.parametrize(
    ("owner", "alive"),
    [
        (this_process(), True),
        ({**this_process(), "started": None}, True),
        ({**this_process(), "started": 1}, False),
        (a_process_that_has_ended(), False),
        ({**this_process(), "host": "elsewhere"}, None),
        ({}, None),
    ],
)
def test_a_launcher_lives_as_long_as_its_own_process_does(owner: dict[str, Any], alive: bool | None) -> None:
    assert launcher_lives(owner) is alive


def test_a_job_that_runs(tmp_path: Path) -> None:
    shown = elastic_launcher("status", running(tmp_path, this_process()))
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = dict(line.split(": ", 1) for line in shown.stdout.splitlines())
    lines = {name: value.strip() for name, value in lines.items()}
    assert lines["state"].startswith("running, ")
    assert lines["progress"] == "epoch 6/24, step 290/1,200 (24.2%)"
    assert lines["world size"] == "2 ranks"
    assert lines["hint (GPUs)"] == "guaranteed 1, allowed 3, limit 3"
    assert (lines["resizes"], lines["node 3"]) == ("2", "training, member 3, rank 1")
    assert "node 1" not in lines
    assert lines["launcher"] == f"process {os.getpid()} on {socket.gethostname()}, alive, http://127.0.0.1:8123"


def test_a_clock_that_was_set_back_since_hides_no_time() -> None:
    state = fold(histories.resized().events[:-8])
    assert state.last_at > state.started_at
    found = document(state, {}, {}, alive=True, now=state.started_at - 3600.0)
    assert found["seconds"] == round(state.last_at - state.started_at, 3)


def test_a_job_whose_launcher_is_gone(tmp_path: Path) -> None:
    work_dir = running(tmp_path, a_process_that_has_ended())
    found = json.loads(elastic_launcher("status", work_dir, "--json").stdout)
    assert (found["state"], found["exit_code"], found["seconds_left"]) == ("launcher gone", None, None)
    assert found["message"].startswith("the launcher ended without a word")


def test_a_job_that_has_ended(tmp_path: Path) -> None:
    histories.write_job(histories.write(histories.troubled().events, tmp_path), **a_process_that_has_ended())
    found = json.loads(elastic_launcher("status", tmp_path, "--json").stdout)
    assert (found["state"], found["exit_code"]) == ("failed", 1)
    assert [(node["node"], node["phase"]) for node in found["nodes"]] == [(1, "stopped"), (2, "stopped"), (3, "lost")]
    shown = elastic_launcher("status", tmp_path).stdout
    assert "state:               failed, exit code 1, 1 min 26 s after its start" in shown
    assert "last message:        rank 2 (member 3, node 3) was killed by SIGKILL" in shown
    assert shown.rstrip().count("\n") < 20


@pytest.mark.parametrize("events", [None, ""])
def test_a_job_that_has_just_begun(tmp_path: Path, events: str | None) -> None:
    histories.write_job(tmp_path, **this_process())
    if events is not None:
        (tmp_path / "events.jsonl").write_text(events)
    found = json.loads(elastic_launcher("status", tmp_path, "--json").stdout)
    assert (found["job"], found["name"], found["state"]) == ("bert-20261121-063320-1f2e", "bert", "starting")
    assert found["world_size"] == 0


def test_nodes_on_their_way_are_shown(tmp_path: Path) -> None:
    shown = elastic_launcher("status", histories.write(histories.waiting().events, tmp_path)).stdout
    assert "node 1:              starting, member 1\n" in shown
    assert "node 2:              warm, member 2\n" in shown


def test_numbers_that_json_lacks_are_texts(tmp_path: Path) -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(2, loss="nan")
    found = elastic_launcher("status", histories.write(story.events, tmp_path), "--json").stdout
    assert json.loads(found, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["loss"] == "nan"


def test_on_a_terminal_it_is_a_table(tmp_path: Path) -> None:
    running(tmp_path, this_process())
    code = """
import sys
from pathlib import Path
from elastic_launcher.cli.status import status
status(Path(sys.argv[1]))
"""
    written = in_terminal(code, str(tmp_path), columns=100)
    assert "─ bert ─" in written
    assert "\x1b[" in written
    assert "guaranteed 1, allowed 3, limit 3" in written


def test_on_a_terminal_names_keep_their_brackets(tmp_path: Path) -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(2)
    story.add("log", step=story.step, values={"acc[/val]": 0.5, "loss[train]": 2.5})
    histories.write(story.events, tmp_path)
    code = """
import sys
from pathlib import Path
from elastic_launcher.cli.status import status
status(Path(sys.argv[1]))
"""
    written = in_terminal(code, str(tmp_path), columns=100)
    assert "acc[/val]" in written
    assert "loss[train]" in written


@pytest.mark.parametrize("command", ["status", "report"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path / "nowhere", "nowhere is not there: give the work directory"),
        (lambda path: (path / "file").write_text("") or path / "file", "is no folder: give the work directory"),
        (lambda path: path, "is no work directory of a job: it has neither job.json nor events.jsonl"),
        (lambda path: histories.write([], path) if (path / "events.jsonl").write_text("x\n") else path, None),
    ],
)
def test_what_is_no_work_directory_is_refused(command: str, make: Any, said: str | None, tmp_path: Path) -> None:
    work_dir = make(tmp_path)
    if said is None:
        (work_dir / "events.jsonl").write_text("Dear diary\n")
        said = "events.jsonl holds no events"
    shown = elastic_launcher(command, work_dir)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("elastic-launcher: ")
    assert said in shown.stderr
    assert shown.stderr.count("\n") == shown.stderr.count(str(tmp_path)) == 1


def test_events_of_a_later_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"v":9,"time":1,"kind":"x","generation":0}\n')
    for command in ("status", "report"):
        shown = elastic_launcher(command, tmp_path)
        assert shown.exit_code == 2
        assert "events of version 9, and this elastic-launcher reads 1: use a newer one" in shown.stderr
        assert shown.stderr.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"created": "x"}, "\"created\" is 'x'; it must be a number"),
        ({"config": []}, '"config" is []; it must be an object'),
        ({"config": {"max_nodes": 10**400}}, "it must be a whole number, 1 to 1,000,000"),
        ({"config": {"wait_for_quota": "x"}}, "\"wait_for_quota\" is 'x'; it must be a number"),
    ],
)
def test_a_job_document_with_a_field_of_another_type_is_refused_by_name(
    tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    (tmp_path / "job.json").write_text(json.dumps(document))
    shown = elastic_launcher("status", tmp_path)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"elastic-launcher: {tmp_path}/job.json: ") and said in shown.stderr


def test_report_writes_into_the_work_directory(tmp_path: Path) -> None:
    work_dir = histories.write(histories.resized().events, tmp_path)
    shown = elastic_launcher("report", work_dir)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == f"timeline: {work_dir}/report.html\n348 steps, 2 resizes, goodput 90.9%\n"
    assert sorted(os.listdir(work_dir)) == ["events.jsonl", "metrics.json", "report.html", "report.md"]


def test_report_writes_where_it_is_told_and_nowhere_else(tmp_path: Path) -> None:
    work_dir = histories.write(histories.resized().events, tmp_path / "job")
    shown = elastic_launcher("report", work_dir, "-o", tmp_path / "timeline.html")
    assert shown.exit_code == 0
    assert (tmp_path / "timeline.html").stat().st_size > 10_000
    assert os.listdir(work_dir) == ["events.jsonl"]


@pytest.mark.parametrize(
    ("output", "said"), [("nowhere/x.html", "the folder {0}/nowhere is not there"), (".", "Is a directory")]
)
def test_report_says_where_it_can_not_write(tmp_path: Path, output: str, said: str) -> None:
    shown = elastic_launcher("report", histories.write(histories.resized().events, tmp_path), "-o", tmp_path / output)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert said.format(tmp_path) in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_report_of_a_job_without_events_says_so(tmp_path: Path) -> None:
    shown = elastic_launcher("report", histories.write_job(tmp_path))
    assert shown.exit_code == 2
    assert "nothing has happened in this job yet: it has no events.jsonl" in shown.stderr


def test_a_job_without_quota_says_what_it_waits_for(tmp_path: Path) -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(5)
    story.add("quota_wait", step=story.step, message="waiting for quota, up to 600 s: 0 GPUs")
    histories.write(story.events, tmp_path)
    shown = elastic_launcher("status", histories.write_job(tmp_path, **this_process())).stdout
    lines = dict(line.split(": ", 1) for line in shown.splitlines())
    assert lines["state"].strip().startswith("waiting, ")
    assert lines["waits for"].strip() == "waiting for quota, up to 600 s: 0 GPUs"
    assert "world size" not in lines and "node 1" not in lines


def test_the_status_of_a_job_in_a_cluster_has_the_namespace_that_projects_match() -> None:
    told = {"state": "running", "demand": {"minimum": 2, "match": {"job": "bert", "namespace": "its own word"}}}
    assert placed(told, "alice")["demand"] == {"minimum": 2, "match": {"job": "bert", "namespace": "alice"}}
    assert placed({}, "alice") == {}, "its launcher has reported nothing yet"


def test_the_values_of_an_adaptive_batch_are_shown(tmp_path: Path) -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start")
    known = {"batch": 1024, "lr_factor": 3.337, "noise_scale": 83.5, "efficiency": 0.104}
    story.add("batch_changed", step=1, old=512, new=1024, learning_rate_rule="adascale")
    histories.write(story.train(3, adaptive=known).events, tmp_path)
    folder = histories.write_job(tmp_path, **this_process())
    said = "1,024 samples, learning rates × 3.337 (adascale), noise scale 83.5, efficiency 10.4%"
    assert f"adaptive batch:      {said}\n" in elastic_launcher("status", folder).stdout
    assert json.loads(elastic_launcher("status", folder, "--json").stdout)["adaptive"] == known
