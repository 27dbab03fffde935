"""``elastic-launcher quota simulate``: what it prints of a trace, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiles import write_profile
from tests.support.quota_command import quota

NEEDS_SCIPY = "fitting a throughput model needs scipy: pip install 'elastic-launcher[adaptive]'"
TRACE = """\
name,submitted,gpus,min,max,seconds,project
bert,0,4,1,8,7200,nlp
resnet,600,4,4,4,3600,vision
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_simulate_shows_what_a_trace_comes_to(projects: Path, trace: Path) -> None:
    found = json.loads(quota("simulate", trace, "--projects", projects, "--json").stdout)
    assert (found["gpus"], found["jobs"]) == (8, 2)
    assert [row["project"] for row in found["projects"]] == ["nlp", "vision", "default"]
    shown = quota("simulate", trace, "--projects", projects)
    assert shown.exit_code == 0
    assert f"2 jobs on 8 GPUs for {found['seconds']:.0f} s: {found['gpu_use']:.0%} of the GPUs held" in shown.stdout
    assert shown.stderr == ""  # how far it is is for terminals


def test_a_row_is_a_line_where_there_is_no_terminal(trace: Path) -> None:
    trace.write_text(TRACE.replace("nlp", "n" * 300))
    shown = quota("simulate", trace, "--machines", "8")
    assert ["n" * 300, "0"] in [line.split()[:2] for line in shown.stdout.splitlines()]


def test_simulate_takes_machines_and_how_a_job_changes(trace: Path) -> None:
    options = ("simulate", trace, "--machines", "2x4", "--json")
    quick, slow = (
        json.loads(quota(*options, "--change-seconds", seconds, "--resize", resize).stdout)
        for seconds, resize in (("1", "in-process"), ("300", "respawn"))
    )
    assert [row["guaranteed"] for row in quick["projects"]] == [0, 0]
    assert quick["mean_completion_s"] < slow["mean_completion_s"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("7200", "2h"), ("--machines", "8"), 'trace.csv, line 2, column seconds: "2h" must be a number, 0 or more'),
        (("", ""), (), 'how many GPUs are there? Give --machines, such as 16x8, or add "capacity: {gpus: N}"'),
        (("", ""), ("--machines", "8", "--change-seconds", "inf"), "--change-seconds is inf; it must be a number"),
        (("", ""), ("--machines", "many"), 'machines are "many"; they must be a number of GPUs, or COUNTxGPUS'),
        (("", ""), ("--adaptive", "--machines", "8"), "trace.csv: its jobs have no batch that could adapt"),
        (("", ""), ("--machines", "2"), "job resnet can never run: it needs 4 GPUs, and there are 2"),
    ],
)
def test_simulate_refuses_what_can_not_be_simulated(
    trace: Path, change: tuple[str, str], options: tuple[str, ...], message: str
) -> None:
    trace.write_text(TRACE.replace(*change))
    result = quota("simulate", trace, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_jobs_of_a_profiled_trace_choose_their_batch(tmp_path: Path) -> None:
    write_profile(tmp_path / "traces" / "toy", epoch=1000)
    path = tmp_path / "workloads" / "jobs.csv"
    path.parent.mkdir()
    path.write_text("name,time,application,num_replicas,batch_size\none,0,toy,1,4\ntwo,60,toy,1,4\n")
    fixed, adaptive = (
        json.loads(quota("simulate", path, "--machines", "2x2", "--json", *options).stdout)
        for options in ((), ("--adaptive",))
    )
    assert fixed["jobs"] == adaptive["jobs"] == 2
    assert adaptive["mean_completion_s"] < fixed["mean_completion_s"]


def test_simulate_says_what_adaptive_jobs_need_that_is_missing(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError(NEEDS_SCIPY)

    monkeypatch.setattr("elastic_launcher.cli.quota.simulate.simulated", missing)
    result = quota("simulate", trace, "--machines", "8")
    assert (result.exit_code, result.stderr) == (2, f"elastic-launcher: quota: {NEEDS_SCIPY}\n")


def test_simulate_ends_in_order_when_it_is_interrupted(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elastic_launcher.cli.quota.simulate.simulated", interrupted)
    result = quota("simulate", trace, "--machines", "8")
    assert result.exit_code == 130
    assert result.stderr == "interrupted: a simulation that is not complete has no figures\n"
