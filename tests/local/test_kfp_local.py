"""The component run for real by ``kfp.local``, as on a laptop: a green step with outputs, a red one with its reason."""

import math
from pathlib import Path

import pytest
from kfp import dsl, local

from elastic_launcher.kfp import elastic_cleanup, elastic_train, elastic_train_distributed
from tests.support.line_script import SCRIPT


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs steps in this environment, where our own version is present: nothing may be installed."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    roots = {"pipeline_root": str(tmp_path / "kfp"), "workspace_root": str(tmp_path / "kfp")}
    local.init(local.SubprocessRunner(use_venv=False), **roots)


@pytest.mark.quick
def test_a_trained_script_makes_a_green_step_with_all_outputs() -> None:
    task = elastic_train(script=SCRIPT.replace("FAILS", "pass"), global_batch_size=8, max_batch_per_gpu=4, name="line")
    outputs = task.outputs
    metrics = outputs["metrics"].metadata
    assert (outputs["world_size_final"], outputs["resizes_total"], outputs["steps"]) == (1, 0, 12)
    assert 0 < outputs["goodput"] <= 1
    assert (metrics["steps"], metrics["world_size_final"], metrics["resizes_total"]) == (12, 1, 0)
    assert metrics["epochs_done"] == 3
    assert "not_a_number" not in metrics
    assert math.isfinite(metrics["samples_per_second"])
    assert Path(outputs["model"].path).stat().st_size > 0
    assert "<svg" in Path(outputs["timeline"].path).read_text()
    assert Path(outputs["summary"].path).read_text().startswith("#")
    assert (Path(outputs["job_dir"]) / "events.jsonl").is_file()


def test_a_script_that_fails_makes_a_red_step_that_shows_its_last_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        elastic_train(
            script=SCRIPT.replace("FAILS", "raise ArithmeticError('the third wheel came off')"),
            global_batch_size=8,
            max_batch_per_gpu=4,
        )
    shown = capfd.readouterr().out
    message = shown[shown.rindex("StepFailed: the training script failed (exit code 1)") :]
    assert "ArithmeticError: the third wheel came off" in message


def test_bad_parameters_make_a_red_step_that_names_them(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        elastic_train(script=SCRIPT, min_nodes=3, max_nodes=2)
    assert "--nodes is '3:2'" in capfd.readouterr().out


def test_a_pipeline_that_cleans_up_is_green_on_a_laptop_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubeconfig").write_text("of some cluster")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    @dsl.pipeline(name="p")
    def pipeline(script: str):  # type: ignore[no-untyped-def]
        with dsl.ExitHandler(elastic_cleanup()):
            elastic_train_distributed(script=script, engine="local", global_batch_size=8, max_batch_per_gpu=4)

    pipeline(script=SCRIPT.replace("FAILS", "pass"))
    assert "there are no nodes to end" in capfd.readouterr().out
