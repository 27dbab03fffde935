"""``elastic-launcher hints``: what it prints, how it ends, and what it leaves in the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elastic_launcher.cli.hints import hints_app
from elastic_launcher.hints import parse
from tests.support.hint_documents import hint, text

COMMAND = [sys.executable, "-m", "elastic_launcher", "hints"]


def hints(*arguments: str | Path) -> Result:
    return CliRunner().invoke(hints_app, [str(one) for one in arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "hints.json"
    file.write_text(text(hint(6, 2, 8, match={"job": "bert"}, sizes=[2, 4, 8]), hint(1), generation=41))
    return file


def test_check_says_what_is_there(path: Path) -> None:
    found = hints("check", path)
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == f"{path}: good (2 hints, generation 41)\n"


def test_check_warns_and_strictly_refuses(path: Path) -> None:
    path.write_text(text(hint(1), note=1, observedAt="2020-01-01T00:00:00Z", ttlSeconds=60))
    found = hints("check", path)
    assert found.exit_code == 0
    assert found.stderr.startswith("warning: note is unknown, and ignored\nwarning: it is stale: observed ")
    found = hints("check", "--strict", path)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == f"elastic-launcher: hints: {path}: note is unknown, and ignored (--strict)\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            text(hint(1), hint(-2)),
            '"allowed" is -2 (hints[1].gpus.allowed); it must be a whole number of GPUs, 0 or more',
        ),
        ('{"a":\n 08}', "line 2, column"),
        (None, "No such file or directory"),
    ],
)
def test_check_says_where_and_what_is_wrong(path: Path, content: str | None, said: str) -> None:
    path.unlink() if content is None else path.write_text(content)
    found = hints("check", path)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"elastic-launcher: hints: {path}: ")
    assert said in found.stderr
    assert found.stderr.count("\n") == 1


def test_show_says_which_match_won_and_why(path: Path) -> None:
    found = hints("show", path, "--match", "job=bert", "--nodes", "1:3", "--nproc-per-node", "2")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [
        "hints[0] (job=bert) wins over hints[1] (every job): it is the most specific",
        "6 GPUs allowed, 4 used (sizes are 2, 4, 8): 2 nodes of 2",
        "nodes: 2 (guaranteed 2, allowed 6, limit 8)",
    ]


def test_show_below_the_minimum(path: Path) -> None:
    found = hints("show", path, "--nodes", "2:4")
    assert found.stdout.splitlines()[-1] == "nodes: 0, the job would not start (allowed 1)"


def test_show_as_json_lists_the_nodes_that_go_first(path: Path) -> None:
    entry = {"match": {"id": "bert-1f2e"}, "gpus": {"allowed": 2}, "leave": [4, 3]}
    path.write_text(json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry]}))
    found = hints("show", path, "--match", "id=bert-1f2e", "--json")
    assert json.loads(found.stdout)["leave"] == [3, 4]


def test_show_as_json(path: Path) -> None:
    found = hints("show", path, "--match", "job=bert", "--share", "2/2", "--global-batch-size", "3", "--json")
    shown = json.loads(found.stdout)
    assert {name: shown[name] for name in ("nodes", "guaranteed", "allowed", "limit", "matched", "generation")} == {
        "nodes": 2,
        "guaranteed": 1,
        "allowed": 3,
        "limit": 4,
        "matched": "hints[0]",
        "generation": 41,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--match", "team=a"), "unknown key 'team'; known are namespace, project, queue, pipeline, job, id"),
        (("--match", "job"), "--match is 'job': it must be KEY=VALUE"),
        (("--nodes", "3"), "--nodes is '3': it must be two whole numbers"),
        (("--nodes", "3:2"), "--nodes is '3:2'"),
        (("--share", "0/2"), "--share is '0/2'"),
    ],
)
def test_show_refuses_what_cannot_be(path: Path, arguments: tuple[str, ...], said: str) -> None:
    found = hints("show", path, *arguments)
    assert found.exit_code == 2
    assert said in found.stderr


def test_set_raises_the_generation_and_keeps_mode_and_link(path: Path) -> None:
    path.chmod(0o640)
    link = path.with_name("link.json")
    link.symlink_to(path.name)
    found = hints("set", link, "--match", "job=bert", "--allowed", "8")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == f"{link}: job=bert: allowed 8 (generation 42)\n"
    after = parse(path.read_bytes())
    assert (after.generation, after.entries[0].allowed, after.entries[0].guaranteed) == (42, 8, 2)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o7777 == 0o640
    assert sorted(os.listdir(path.parent)) == ["hints.json", "link.json"]


def test_set_makes_a_file(tmp_path: Path) -> None:
    new = tmp_path / "new.json"
    assert hints("set", new, "--match", "queue=a", "--allowed", "2", "--limit", "4").exit_code == 0
    found = parse(new.read_bytes())
    assert (found.generation, found.entries[0].match, found.entries[0].limit) == (1, {"queue": "a"}, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--match", "job=bert", "--allowed", "9"), "it must be at most the limit, 8"),
        (("--match", "job=bert", "--allowed", "1"), "it must be at most what is allowed, 1"),
        (("--match", "team=a", "--allowed", "1"), "known are namespace, project, queue, pipeline, job, id"),
        (("--match", "job=bert", "--allowed", "-1"), "--allowed"),
        (("--match", "job=bert"), "--allowed"),
    ],
)
def test_set_refuses_what_could_not_be_used(path: Path, arguments: tuple[str, ...], said: str) -> None:
    before = path.read_bytes()
    found = hints("set", path, *arguments)
    assert found.exit_code == 2
    assert said in found.stderr
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["hints.json"]


def test_set_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = hints("set", tmp_path / "nowhere" / "hints.json", "--allowed", "1")
    assert found.exit_code == 2
    assert "nowhere: No such file or directory" in found.stderr


def test_two_processes_that_edit_at_once_lose_nothing(path: Path) -> None:
    def edits(job: str) -> subprocess.Popen[bytes]:
        line = " && ".join(
            f'"$@" set {path} --match job={job}{number} --allowed {number} > /dev/null' for number in range(4)
        )
        return subprocess.Popen(["sh", "-c", line, "sh", *COMMAND], stdin=subprocess.DEVNULL)

    writers = [edits("a"), edits("b")]
    reads: list[Any] = []
    while any(writer.poll() is None for writer in writers):
        reads.append(parse(path.read_bytes()).generation)
    assert [writer.wait() for writer in writers] == [0, 0]
    after = parse(path.read_bytes())
    assert after.generation == 41 + 8
    assert {entry.match["job"] for entry in after.entries if entry.match} == {
        "bert",
        *(f"{job}{number}" for job in "ab" for number in range(4)),
    }
    assert reads == sorted(reads)
    assert os.listdir(path.parent) == ["hints.json"]
