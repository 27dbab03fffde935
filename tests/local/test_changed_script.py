"""A step whose script was changed, in the folder of the one before: never green with the model of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_launcher.pipeline_step import StepFailed, Trained, train
from tests.support.line_script import SCRIPT

SHORT = SCRIPT.replace("FAILS", "pass")
LONGER = SHORT.replace("job.epochs(3)", "job.epochs(5)")
BROKEN = SCRIPT.replace("FAILS", "raise ArithmeticError('the third wheel came off')")


def step(folder: Path, script: str, **options: object) -> Trained:
    """Runs a step of a pipeline, as the fronts do, in a work directory that each of them is given."""
    batch = {"global_batch_size": 8, "max_batch_per_gpu": 4, "name": "line", "output": f"{folder}/job.model"}
    return train(
        script=script,
        module="",
        arguments=[],
        options=batch | options,
        work_dir=str(folder / "job"),
        artifacts=str(folder),
    )


def test_a_changed_script_trains_again_where_the_job_before_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "job.model"
    assert step(tmp_path, SHORT).metrics["steps"] == 12
    first = model.read_bytes()
    capfd.readouterr()

    assert step(tmp_path, SHORT).metrics["steps"] == 12
    assert f"the job in {tmp_path / 'job'} is done" in capfd.readouterr().out, "a retry of the same step"
    assert model.read_bytes() == first

    assert step(tmp_path, LONGER).metrics["steps"] == 20
    assert "another job was here: the code there is another one than here (line.py)" in capfd.readouterr().out
    assert model.read_bytes() != first
    (aside,) = (tmp_path / "job" / "earlier").iterdir()
    assert (aside / "job.model").read_bytes() == first and (aside / "report.html").is_file()


def test_a_changed_script_is_refused_where_the_job_before_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="the third wheel came off"):
        step(tmp_path, BROKEN)
    with pytest.raises(StepFailed, match=r"another one than here \(line.py\); .* \(--accept-changes script; ") as red:
        step(tmp_path, SHORT)
    assert red.value.exit_code == 2
    assert step(tmp_path, SHORT, accept_changes="script").metrics["steps"] == 12
    assert not (tmp_path / "job" / "earlier").exists(), "it is the same job"
