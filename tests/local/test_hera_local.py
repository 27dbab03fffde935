"""A Hera step run for real on this machine, as it is written for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastic_launcher.hera import ElasticTrain, StepFailed
from tests.support.line_script import SCRIPT


def step(rate: str) -> ElasticTrain:
    return ElasticTrain(
        name="train",
        image="registry.example/train:3",
        script=SCRIPT.replace("FAILS", "float(__import__('sys').argv[1])"),
        arguments=[rate],
        nodes="2:2",
        engine="kubernetes",
        checkpoint_dir="s3://models/{{workflow.name}}",
        global_batch_size=8,
        max_batch_per_gpu=4,
        hints="configmap/quota/gpu-hints",
    )


def test_it_trains_and_gives_its_model(tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    done = step("0.1").run_local(output=str(model), work_dir=str(tmp_path / "job"), checkpoint_dir=None)
    assert (done.metrics["steps"], done.metrics["world_size_final"]) == (12, 2)
    assert set(torch.load(model)) == {"weight", "bias"}
    assert (Path(done.work_dir) / "report.html").exists()


@pytest.mark.thorough
def test_a_script_that_fails_raises_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="could not convert string to float: 'fast'") as failed:
        step("fast").run_local(work_dir=str(tmp_path / "job"), checkpoint_dir=None)
    last = str(failed.value).splitlines()[-1]
    assert last.startswith("the training script failed (exit code 1): ") and "rank" in last
