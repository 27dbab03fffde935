"""What a command's argument names, what a job's Service tells of it, and what a node repeats of its ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from elastic_launcher.cli.job_argument import job_folder, named
from elastic_launcher.cli.status import show
from elastic_launcher.engines.kubernetes.objects.names import JobName
from elastic_launcher.launcher.cluster.status_writer import ToldStatus
from elastic_launcher.launcher.rank_logs import JobLines
from elastic_launcher.workdir import Layout
from tests.support import histories


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("job/digits", JobName("", "digits")),
        ("job/training/digits", JobName("training", "digits")),
        ("work/digits", None),
        ("job", None),
    ],
)
def test_a_name_is_told_from_a_path(given: str, meant: JobName | None) -> None:
    assert named(Path(given)) == meant


@pytest.mark.parametrize("look", [job_folder, named])
def test_a_name_that_no_file_can_have_is_refused(
    look: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job").mkdir()
    name = f"job/{'n' * 300}"
    with pytest.raises(typer.Exit) as ended:
        look(Path(name))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"elastic-launcher: {name} can't be looked at: File name too long\n"


def test_a_folder_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job/digits").mkdir(parents=True)
    assert named(Path("job/digits")) is None


def test_more_than_a_namespace_and_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        named(Path("job/a/b/c"))
    assert capsys.readouterr().err == (
        "elastic-launcher: job/a/b/c is no job: give a work directory, job/NAME or job/NAMESPACE/NAME\n"
    )


def test_a_running_job_is_told_in_per_cent_and_seconds(tmp_path: Path) -> None:
    histories.write(histories.resized().events[:-8], tmp_path)
    found = ToldStatus(Layout(tmp_path), {}).now()
    assert found["progressPercentage"] == 100 * found["step"] // found["total_steps"]
    assert found["estimatedRemainingSeconds"] == round(found["seconds_left"])
    assert found["metrics"] == {"loss": found["loss"], **found["logged"]}
    assert found["state"] == "running"


def test_what_is_told_shows_all_that_the_work_directory_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    histories.write(histories.resized().events[:-8], tmp_path)
    told = json.loads(json.dumps(ToldStatus(Layout(tmp_path), {}).now()))
    slow = next(node for node in told["nodes"] if 1 in node["ranks"])
    told["stragglers"] = [{"member": slow["members"][0], "node": slow["node"], "factor": 3.5}]
    show(("told", "now"), told)
    parts = [line.partition(":") for line in capsys.readouterr().out.splitlines()]
    lines = {name: value.strip() for name, _, value in parts}
    assert lines["world size"] == f"{told['world_size']} ranks"
    assert lines["slow"] == f"rank 1 (node {slow['node']}) is 3.5 times slower"
    assert {"progress", "loss", "hint (GPUs)", "samples per second", "resizes", *told["logged"]} <= lines.keys()


ECHOES = """
from elastic_launcher.agent.echo import Echo
first, second = Echo(0), Echo(1)
first.take(b"a\\nb")
second.take(b"c\\n")
first.take(b"d\\nunfinished")
first.end()
second.end()
"""


def test_lines_of_ranks_are_repeated_whole() -> None:
    shown = subprocess.run([sys.executable, "-c", ECHOES], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        "[local rank 0] a",
        "[local rank 1] c",
        "[local rank 0] bd",
        "[local rank 0] unfinished",
    ]


MARKS = """
from elastic_launcher.agent.echo import AGAIN_BYTES, Echo
echo = Echo(1)
echo.take(b"import took long::elastic generation=3 rank=2 world_size=4::\\n")
for _ in range(2):
    echo.take(b"x" * AGAIN_BYTES + b"\\n" + b"y\\n" * 2)
"""


def test_a_mark_is_repeated_for_whoever_keeps_the_end_of_a_log_only(tmp_path: Path) -> None:
    shown = subprocess.run([sys.executable, "-c", MARKS], capture_output=True, text=True, check=True).stdout
    lines = [line.removeprefix("[local rank 1] ") for line in shown.splitlines()]
    mark = "::elastic generation=3 rank=2 world_size=4::"
    assert [line if len(line) < 100 else "long" for line in lines] == [
        f"import took long{mark}", "long", mark, "y", "y", "long", mark, "y", "y",
    ]  # fmt: skip
    (tmp_path / "4-1.log").write_text("\n".join(lines[-4:]) + "\n")  # as a machine keeps it
    kept = JobLines(tmp_path)
    assert [(line.rank, line.text[:1]) for line in kept.written()] == [(2, "x"), (2, "y"), (2, "y")]
