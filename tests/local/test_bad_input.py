"""Every bad input of the command line ends with its exit code, one clear message, and nothing started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.launches import PATIENCE, interrupt, launched, until

TRAIN = "raise SystemExit('this script must not be started')\n"
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
HINTS: dict[str, Any] = {"apiVersion": "elastic-hints/v1", "defaults": {"gpus": {"allowed": 1}}}
thorough = partial(pytest.param, marks=pytest.mark.thorough)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[str]:
        """The lines that the launcher has to say about itself."""
        return [line for line in self.stderr.splitlines() if line.strip()]


def run(folder: Path, *arguments: str, command: Sequence[str] = ("--", "train.py")) -> Ended:
    """Runs ``elastic-launcher run`` to its end."""
    (folder / "train.py").write_text(TRAIN)
    result = subprocess.run(
        [sys.executable, "-m", "elastic_launcher", "run", *arguments, *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return Ended(result.returncode, result.stdout, result.stderr)


def assert_refused(folder: Path, ended: Ended, said: str) -> None:
    """Fails unless a command ended with 2 and one message, before it had a folder for a job."""
    assert ended.exit_code == 2, ended.stderr
    assert len(ended.messages) == 1, ended.stderr
    assert ended.messages[0].startswith("elastic-launcher: ")
    assert said in ended.messages[0]
    assert ended.stdout == ""
    assert not (folder / "elastic-jobs").exists()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "3"), "--nodes is '3': it must be MIN:MAX"),
        (("--nodes", "0:2"), "--nodes is '0:2'"),
        (("--nodes", "3:2"), "--nodes is '3:2'"),
        (("--nodes", "one:two"), "--nodes is 'one:two'"),
        (("--nproc-per-node", "0"), "--nproc-per-node is '0'"),
        (("--global-batch-size", "0"), "--global-batch-size is '0': it must be a whole number, 1 or more"),
        (("--global-batch-size", "-1"), "--global-batch-size is '-1'"),
        (("--global-batch-size", "1.5"), "--global-batch-size is '1.5'"),
        (("--max-batch-per-gpu", "0"), "--max-batch-per-gpu is '0'"),
        (("--max-batch-per-gpu", "x"), "--max-batch-per-gpu is 'x'"),
        (("--match", "team=red"), "unknown key 'team'; known are namespace, project, queue, pipeline, job"),
        (("--match", "id=bert-1f2e"), "--match gives the id 'bert-1f2e', and the launcher itself gives a job its id"),
        (("--match", "queue"), "--match is 'queue': it must be KEY=VALUE"),
        (("--share", "2/1"), "--share is '2/1'"),
        (("--require-hints",), "--require-hints needs --hints FILE"),
        (("--data", "nowhere"), "--data is 'nowhere': there is nothing at"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    assert_refused(tmp_path, run(tmp_path, *arguments), said)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "the script is missing"),
        (("--", "nowhere.py"), "the script nowhere.py is not there (looked in "),
        thorough(("nowhere.py", "--lr", "1"), "the script nowhere.py is not there"),
        (("--", "-m", "no_such_module.train"), "there is no module no_such_module.train"),
        thorough(("--", "-m"), "-m needs the name of a module"),
        thorough(("--", "."), "the script . is not there"),
    ],
)
def test_scripts_that_are_not_there(tmp_path: Path, command: Sequence[str], said: str) -> None:
    assert_refused(tmp_path, run(tmp_path, command=command), said)


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    ended = run(tmp_path, "--max-restarts", "3")
    assert ended.exit_code == 2
    assert "No such option: --max-restarts" in ended.stderr


@pytest.mark.parametrize("work_dir", ["train.py", "train.py/below", "/proc/job"])
def test_a_work_directory_that_cannot_be_written(tmp_path: Path, work_dir: str) -> None:
    said = "can't be written: "
    assert_refused(tmp_path, run(tmp_path, "--work-dir", work_dir), said)


def test_work_directories_of_jobs_that_live_ended_or_are_others(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITS)
    arguments = ("--work-dir", "job", "--global-batch-size", "8")
    with launched("--global-batch-size", "8", "--", "wait.py", cwd=tmp_path) as first:
        first.node_pid(1)
        owner = f"process {first.process.pid} on {socket.gethostname()}"
        job_id = json.loads((tmp_path / "job" / "job.json").read_text())["id"]
        said = f"belongs to a job that is alive ({job_id}, {owner})"
        assert_refused(tmp_path, run(tmp_path, *arguments, command=("--", "wait.py")), said)
        (tmp_path / "go").touch()
        first.wait()
    again = run(tmp_path, *arguments, command=("--", "wait.py"))
    assert again.exit_code == 0 and f"the job in {tmp_path / 'job'} is done: done" in again.stderr
    other = run(tmp_path, *arguments, command=("--", "wait.py", "1"))
    assert other.exit_code == 0 and "another job was here: arguments not given there, '1' here" in other.stderr
    assert (tmp_path / "job" / "earlier" / job_id / "report.html").is_file()


def test_a_work_directory_of_another_job_that_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITS)
    with launched("--global-batch-size", "8", "--", "wait.py", cwd=tmp_path) as first:
        first.node_pid(1)
        interrupt(first.process)
        assert first.wait() == 130
    arguments = ("--work-dir", "job", "--global-batch-size", "8")
    assert_refused(
        tmp_path, run(tmp_path, *arguments, command=("--", "wait.py", "1")), "arguments not given there, '1' here"
    )
    other = ("--work-dir", "job", "--global-batch-size", "9")
    assert_refused(tmp_path, run(tmp_path, *other, command=("--", "wait.py")), "global batch size 8 there, 9 here")
    assert_refused(tmp_path, run(tmp_path, *arguments), "script wait.py there, train.py here")


def entry(**gpus: Any) -> str:
    """Returns a document whose one entry has these numbers."""
    return json.dumps(HINTS | {"hints": [{"match": {"job": "train"}, "gpus": gpus}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        thorough("", "hints"),
        ("{", "hints"),
        thorough("[]", "hints"),
        (json.dumps(HINTS | {"apiVersion": "elastic-hints/v9"}), "apiVersion"),
        thorough(json.dumps({"apiVersion": "elastic-hints/v1"}), "hints"),
        thorough('{"apiVersion": "elastic-hints/v1", "apiVersion": "elastic-hints/v1", "defaults": {}}', "apiVersion"),
        (entry(allowed=-2), "allowed"),
        thorough(entry(allowed=1.5), "allowed"),
        thorough(entry(allowed=True), "allowed"),
        thorough(entry(allowed="8Gi"), "allowed"),
        thorough(entry(allowed="+8"), "allowed"),
        thorough(entry(allowed="08"), "allowed"),
        thorough(entry(allowed=float("nan")), "NaN"),
        thorough(entry(guaranteed=3, allowed=2), "guaranteed"),
        thorough(entry(allowed=3, limit=2), "limit"),
        thorough(entry(allowed=100_001), "allowed"),
        thorough(entry(allowed=1).replace('{"allowed": 1}', '{"allowed": 08}', 1), "hints"),
        thorough(
            json.dumps(HINTS | {"hints": [{"match": {"job": "train"}, "gpus": {"allowed": 1}}] * 1001}),
            "1000",
            id="too many",
        ),
        pytest.param(json.dumps(HINTS) + " " * (1 << 20), "hints", id="too large"),
    ],
)
def test_hints_that_are_malformed_at_the_start(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "hints.json").write_text(text)
    ended = run(tmp_path, "--hints", "hints.json")
    assert_refused(tmp_path, ended, said)
    assert "hints" in ended.messages[0]


def test_required_hints_that_are_not_there(tmp_path: Path) -> None:
    assert_refused(tmp_path, run(tmp_path, "--hints", "nowhere.json", "--require-hints"), "nowhere.json")


@pytest.mark.parametrize("text", [entry(allowed=0), entry(allowed=1)])
def test_hints_below_the_minimum_at_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "hints.json").write_text(text)
    ended = run(tmp_path, "--hints", "hints.json", "--nodes", "2:3", "--work-dir", "job")
    assert ended.exit_code == 76, ended.stderr
    assert "2" in ended.messages[-1]
    assert not list((tmp_path / "job" / "nodes").iterdir())


@pytest.mark.quick
def test_a_script_that_contradicts_the_launcher_is_told_in_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "init.py").write_text("import elastic_launcher.torch as elastic\nelastic.init(4, 2)\n")
    ended = run(tmp_path, "--global-batch-size", "8", "--work-dir", "job", command=("--", "init.py"))
    assert ended.exit_code == 1
    assert ended.messages[-1].startswith(
        "elastic-launcher: the script of member 1 (node 1) exited with code 1 before training began; "
        "nothing was saved; its last exception: ValueError: global_batch_size is 4 in init() but 8 in "
    )
    assert sum("exited with code 1" in line for line in ended.messages) == 2  # the fact when it is seen, the verdict


def test_a_quota_that_comes_while_it_is_waited_for(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    hints.write_text(entry(allowed=0))
    (tmp_path / "train.py").write_text("print('started')\n")
    with launched("--hints", str(hints), "--wait-for-quota", "60", "--", "train.py", cwd=tmp_path) as launcher:
        launcher.events.wait("hint_applied")
        assert not list((launcher.work_dir / "nodes").iterdir())
        hints.write_text(entry(allowed=1))
        until(lambda: "started" in launcher.stdout, "the script is started")
        launcher.wait()
