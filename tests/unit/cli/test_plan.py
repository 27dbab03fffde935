"""``elastic-launcher plan``: a table for people, JSON for machines, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from elastic_launcher.batch import plan_step
from elastic_launcher.cli.plan import SIZES, plan
from tests.support.histories import Story


def run(*arguments: str) -> Result:
    app = typer.Typer(add_completion=False)
    app.command()(plan)
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "80"})


def planned(batch: int, largest: int, *more: str) -> Result:
    return run("--global-batch-size", str(batch), "--max-batch-per-gpu", str(largest), *more)


def document(*arguments: Any) -> Any:
    result = planned(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def cells(result: Result) -> list[list[str]]:
    """Returns the table's rows, without its head."""
    assert (result.exit_code, result.stderr) == (0, "")
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.stdout.splitlines()[1:]]


def test_without_a_world_size_each_of_many_has_a_row() -> None:
    assert [row[0] for row in cells(planned(256, 64))] == [str(size) for size in SIZES]


@pytest.mark.parametrize("more", [(), ("--world-size", "2000000")])
def test_a_step_that_fills_the_memory_is_refused(more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.cli.plan.plan_step", lambda *batch, **kind: pytest.fail("it is planned"))
    refused = planned(2_000_000, 1_000 if more else 1, *more)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "more than 1,000,000 micro-batches or ranks" in refused.stderr


def test_no_row_has_more_ranks_than_samples() -> None:
    assert [row[0] for row in cells(planned(13, 64))] == ["1", "2", "3", "4", "5", "6", "7", "8", "12"]


def test_a_row_says_how_a_step_runs() -> None:
    rows = cells(planned(256, 30))
    assert rows[0] == ["1", "256", "9", "29", "4 x 29 + 5 x 28"]
    assert rows[2] == ["3", "85-86", "3", "29", "2 x 29 + 28"]
    assert rows[12] == ["48", "5-6", "1", "6", "6", "43 ranks"]


def test_with_a_world_size_each_rank_has_a_row() -> None:
    assert cells(planned(256, 64, "--world-size", "3")) == [
        ["0", "86", "0", "2 x 43"],
        ["1", "85", "86", "43 + 42"],
        ["2", "85", "171", "43 + 42"],
    ]


def test_a_spare_rank_is_shown() -> None:
    assert cells(planned(2, 1, "--world-size", "3"))[-1] == ["2", "0", "2", "none"]


@pytest.mark.parametrize("arguments", [(10**6, 1), (10**6, 1, "--world-size", "8"), (10**6, 7)])
def test_a_row_is_a_line_however_many_micro_batches_there_are(arguments: tuple[Any, ...]) -> None:
    lines = planned(*arguments).stdout.splitlines()
    assert len(lines) == 1 + (8 if len(arguments) == 4 else len(SIZES))
    assert max(len(line.rstrip()) for line in lines) <= 80


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_json_is_the_whole_plan(world_size: int) -> None:
    found = document(7, 2, "--world-size", str(world_size))
    expected = plan_step(7, 2, world_size)
    assert {key: found[key] for key in ("samples", "max_batch_per_gpu", "world_size", "accumulation")} == {
        "samples": 7,
        "max_batch_per_gpu": 2,
        "world_size": world_size,
        "accumulation": expected.accumulation,
    }
    assert found["shares"] == [
        {"rank": rank, "start": one.start, "samples": one.samples, "micro_batches": list(one.micro_batches)}
        for rank, one in enumerate(expected.shares)
    ]
    assert found["largest_micro_batch"] == max(size for one in expected.shares for size in one.micro_batches)


def test_json_without_a_world_size_is_a_list_of_plans() -> None:
    plans = document(16, 4)
    assert [one["world_size"] for one in plans] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
    assert plans[2] == document(16, 4, "--world-size", "3")
    assert [one["fewest_useful_ranks"] for one in plans] == [1, 2, 3, 4, 4, 6, 6, 8, 8, 16]


@pytest.mark.parametrize("flag", ["--global-batch-size", "--max-batch-per-gpu", "--world-size", "--deterministic"])
@pytest.mark.parametrize("value", ["0", "-1", "2.5", "x", "", "1e3", "²"])
def test_bad_input_ends_with_2_and_one_line(flag: str, value: str) -> None:
    given = {"--global-batch-size": "8", "--max-batch-per-gpu": "2", "--world-size": "2"} | {flag: value}
    result = run(*(f"{name}={text}" for name, text in given.items()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"elastic-launcher: {flag} is {value!r}; it must be a whole number, 1 or more\n"


def test_a_missing_flag_is_a_usage_error() -> None:
    result = run("--global-batch-size", "8")
    assert result.exit_code == 2
    assert "--max-batch-per-gpu" in result.stderr


def test_a_deterministic_step_is_divided_by_virtual_ranks() -> None:
    rows = {row[0]: row[1:] for row in cells(planned(24, 4, "--deterministic", "4"))}
    assert rows["2"] == ["12", "4", "3", "4 x 3"]
    assert rows["3"] == ["6-12", "4", "3", "4 x 3", "2 ranks"]
    assert rows["8"] == ["0-6", "2", "3", "2 x 3", "4 ranks"]
    assert cells(planned(18, 4, "--deterministic", "4", "--world-size", "2")) == [
        ["0", "10", "0", "3 + 2 + 3 + 2"],
        ["1", "8", "10", "2 x 4"],
    ]
    assert document(9, 4, "--deterministic", "2", "--world-size", "1")["largest_micro_batch"] == 4


def job(folder: Path, *times: list[Any], **more: Any) -> str:
    """Returns the work directory of a job of one to four ranks that has reported these times."""
    story = Story(max_nodes=4).start_nodes(1).form(1, cause="start")
    bounds = {"base_batch_size": 256, "max_batch_size": 256, "max_micro_batch": 64}
    if times:
        story.add("step_times", step=9, batch=256, times=list(times), **{"bounds": bounds, **more})
    (folder / "events.jsonl").write_text("".join(event.to_line() for event in story.events))
    return str(folder)


ONE, TWO = [1, 1, 64, 4, 0.8, 0.2, 20], [2, 2, 64, 2, 0.41, 0.2, 20]


def test_of_a_job_each_size_has_a_row(tmp_path: Path) -> None:
    rows = cells(run(job(tmp_path, ONE, [2, 2, 32, 1, 0.41, 0.2, 20])))
    assert [row[0] for row in rows[:4]] == ["1", "2", "3", "4"]
    assert " ".join(rows[0]).split() == ["1", "256", "64", "4", "320", "100.0%", "320", "measured"]
    assert " ".join(rows[3]).split()[-1] == "modelled"


def test_of_a_job_it_is_said_what_is_promised_and_assumed(tmp_path: Path) -> None:
    said = run(job(tmp_path, ONE)).stdout
    assert "Beyond 2 GPUs nothing is promised: at most half as many were tried." in said
    assert "Assumed: only one rank was timed: synchronization costs nothing." in said
    assert max(len(line.rstrip()) for line in said.splitlines()[:5]) <= 80


def test_of_a_job_it_is_said_beyond_which_size_a_gpu_adds_little(tmp_path: Path) -> None:
    folder = job(tmp_path, ONE, TWO, [3, 3, 43, 2, 0.4, 0.15, 20], [4, 4, 64, 1, 0.42, 0.2, 20])
    assert "Beyond 2 GPUs, another adds less than a third of itself." in run(folder).stdout
    found = json.loads(run(folder, "--json").stdout)
    assert (found["last_worthwhile"], len(found["sizes"]), len(found["assumptions"])) == (2, 4, 1)
    assert found["sizes"][1] == {
        "ranks": 2,
        "batch": 256,
        "micro_batch": 64,
        "accumulation": 2,
        "samples_per_second": pytest.approx(256 / 0.41, rel=1e-4),
        "efficiency": 1.0,
        "goodput": pytest.approx(256 / 0.41, rel=1e-4),
        "measured": True,
    }


def test_of_an_adaptive_job_the_best_batch_of_each_size_is_planned(tmp_path: Path) -> None:
    bounds = {"base_batch_size": 256, "max_batch_size": 4096, "max_micro_batch": 64}
    found = json.loads(run(job(tmp_path, ONE, TWO, bounds=bounds, noise=[50.0, 1.0]), "--json").stdout)["sizes"]
    assert [one["batch"] for one in found] == sorted(one["batch"] for one in found)
    assert found[-1]["batch"] > 256 and found[-1]["efficiency"] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not there: give the work directory, which `elastic-launcher run` prints when it starts"),
        (["."], "is no work directory of a job: it has neither job.json nor events.jsonl"),
        (["untimed"], "no steps of this job were timed yet. Its script must use elastic_launcher.torch"),
        (["torn"], "holds no events"),
        (["untimed", "--world-size", "2"], "--world-size doesn't go with a work directory"),
        (["untimed", "--deterministic", "2"], "--deterministic doesn't go with a work directory"),
        ([], "--global-batch-size and --max-batch-per-gpu missing: give both batch sizes, or a job's work directory"),
    ],
)
def test_where_nothing_can_be_planned_it_says_what_to_do(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("untimed", "torn"):
        (tmp_path / name).mkdir()
    job(tmp_path / "untimed")
    (tmp_path / "torn" / "events.jsonl").write_text("no\nevents\n")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_the_ranks_of_a_node_that_share_a_model_run_as_many_micro_batches() -> None:
    rows = cells(planned(9, 2, "--world-size", "4", "--shard", "2"))
    assert [row[1:] for row in rows] == [
        ["3", "0", "2 + 1"],
        ["2", "3", "2 x 1"],
        ["2", "5", "2"],
        ["2", "7", "2"],
    ]
    assert [row[0] for row in cells(planned(9, 2, "--shard", "2"))] == ["2", "4", "6", "8"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--shard", "2", "--world-size", "3"), "world_size is 3; it must be a multiple of nproc_per_node, 2"),
        (("--shard", "0"), "--shard is '0'; it must be a whole number, 1 or more"),
        (("--shard", "2", "--batch-norm"), "--batch-norm doesn't go with --shard"),
        (("--shard", "2", "--deterministic", "4"), "--deterministic doesn't go with --shard"),
    ],
)
def test_what_does_not_go_with_a_sharded_model_is_named(more: tuple[str, ...], message: str) -> None:
    result = planned(9, 2, *more)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


def test_a_model_with_batch_norm_has_no_micro_batch_of_one_sample() -> None:
    assert [row[1] for row in cells(planned(4, 32, "--world-size", "3"))] == ["2", "1", "1"]
    assert [row[1] for row in cells(planned(4, 32, "--world-size", "3", "--batch-norm"))] == ["2", "2", "0"]
    result = planned(5, 2, "--batch-norm")
    assert result.exit_code == 2
    assert "a step of 5 samples in micro-batches of at most 2" in result.stderr
    assert len(result.stderr.splitlines()) == 1
