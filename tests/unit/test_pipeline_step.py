"""How a step that fails says why: once, with what its launcher said last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_launcher import pipeline_step
from elastic_launcher.config import JobConfig
from elastic_launcher.host.script_file import script_path
from elastic_launcher.workdir import claim


def failure_of(lines: str, work_dir: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> pipeline_step.StepFailed:
    """Returns how a step fails whose launcher runs these lines."""
    (folder / "python").write_text(f"#!{sys.executable}\n{lines}\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(pipeline_step, "run_arguments", lambda *_: [])
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    with pytest.raises(pipeline_step.StepFailed) as failed:
        pipeline_step.train(script="train.py", module="", arguments=(), options={}, work_dir=work_dir, artifacts="")
    return failed.value


def test_the_lines_of_a_run_that_were_just_shown_are_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "print('a line'); print('elastic-launcher: stopped after step 9; step 9 is saved'); raise SystemExit(75)"
    failed = failure_of(lines, str(tmp_path / "job"), tmp_path, monkeypatch)
    assert capsys.readouterr().out.count("a line") == 1
    why = "the training was preempted or stopped (exit code 75): stopped after step 9; step 9 is saved"
    assert str(failed) == why
    assert "a line\nelastic-launcher: stopped after step 9; step 9 is saved\n" in failed.account


def test_the_lines_of_a_failed_run_are_no_more_than_another_step_can_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's input is a word of its command, and Linux takes 128 KiB."""
    lines = "print('ü' * 200_000); print('a line'); print('elastic-launcher: no ' + 'x' * 200_000); raise SystemExit(1)"
    failed = failure_of(lines, f"{tmp_path}/job\n", tmp_path, monkeypatch)
    assert failed.folder == tmp_path / "job"
    assert len(failed.account.encode()) < 128 * 1024
    assert "the training script failed (exit code 1): no xxx" in failed.account


def test_a_step_that_is_refused_leaves_the_script_of_the_job_that_runs_as_it_is(tmp_path: Path) -> None:
    first, other = "import sys\nprint(1)\n", "import sys\nprint(2)\n"
    options = {"nodes": "1:1", "nproc_per_node": 1, "name": "digits"}
    job = str(tmp_path / "job")
    pipeline_step.run_arguments(first, "", [], options, copy := script_path(Path(job), "digits", first))
    with (
        claim(JobConfig(script=str(copy), name="digits", work_dir=job), tmp_path),
        pytest.raises(pipeline_step.StepFailed, match="belongs to a job that is alive") as refused,
    ):
        pipeline_step.train(script=other, module="", arguments=(), options=options, work_dir=job, artifacts="")
    assert refused.value.exit_code == 2
    assert copy.read_text() == first


def test_a_script_that_can_not_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        pipeline_step.StepFailed, match=f"text of the script can't be written to {tmp_path}/file/job.code/"
    ) as failed:
        pipeline_step.train(
            script="print(1)\nprint(2)\n",
            module="",
            arguments=(),
            options={},
            work_dir=f"{tmp_path}/file/job",
            artifacts="",
        )
    assert failed.value.exit_code == 70
