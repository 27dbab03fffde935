"""``elastic-launcher plan``: a table for people, JSON for machines, and one line for what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from elastic_launcher.batch import plan_step
from elastic_launcher.cli.plan import SIZES, plan


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


@pytest.mark.parametrize("flag", ["--global-batch-size", "--max-batch-per-gpu", "--world-size"])
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


def test_a_model_with_batch_norm_has_no_micro_batch_of_one_sample() -> None:
    assert [row[1] for row in cells(planned(4, 32, "--world-size", "3"))] == ["2", "1", "1"]
    assert [row[1] for row in cells(planned(4, 32, "--world-size", "3", "--batch-norm"))] == ["2", "2", "0"]
    result = planned(5, 2, "--batch-norm")
    assert result.exit_code == 2
    assert "a step of 5 samples in micro-batches of at most 2" in result.stderr
    assert len(result.stderr.splitlines()) == 1
