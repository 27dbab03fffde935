"""Each pipeline that is shipped, run for real by ``kfp.local`` as on a laptop."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, local

from elastic_launcher.events import EventFollower, read_events
from elastic_launcher.kfp import elastic_classification, elastic_train, elastic_train_distributed, elastic_verdict
from pipelines.digits_keras.pipeline import digits_keras
from pipelines.digits_search.pipeline import digits_search
from pipelines.gpt_lora.pipeline import gpt_lora
from pipelines.plan_train_evaluate.pipeline import plan_train_evaluate
from pipelines.text_tuning.pipeline import text_tuning
from tests.support.launches import until
from tests.support.resizes import LONG

FAILING = (
    "import elastic_launcher.torch as elastic\nelastic.init(8, 4)\nraise ArithmeticError('the third wheel came off')\n"
)
CLASSIFYING = """
import json, os, pathlib
import elastic_launcher.torch as elastic

elastic.init(8, 4)
classes = {"labels": ["cat", "dog"], "matrix": [[8, 1], [0, 9]]}
pathlib.Path(os.environ["ELASTIC_OUTPUT"] + ".classes.json").write_text(json.dumps(classes))
"""
SLOW = """
import time
import torch
import elastic_launcher.torch as elastic

job = elastic.init(8, 4)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = job.prepare(model, optimizer)
inputs = torch.arange(64.0).reshape(32, 2) / 64
loader = job.dataloader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), shuffle=True)
for epoch in job.epochs(30):
    for x, y in loader:
        time.sleep(0.2)
        job.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
"""
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # each step imports torch


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs steps in this environment, where our own version is present: nothing may be installed."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    roots = {"pipeline_root": str(tmp_path / "kfp"), "workspace_root": str(tmp_path / "kfp")}
    local.init(local.SubprocessRunner(use_venv=False), **roots)


@pytest.fixture
def hints(tmp_path: Path) -> str:
    allow(tmp_path / "hints.json", 3)
    return str(tmp_path / "hints.json")


def allow(hints: Path, gpus: int) -> None:
    entry = {"gpus": {"guaranteed": 1, "allowed": gpus, "limit": 4}}
    draft = hints.with_suffix(".draft")
    draft.write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": entry}))
    draft.replace(hints)


def test_trials_of_a_search_share_the_quota_and_go_on_where_they_were(tmp_path: Path, hints: str) -> None:
    allow(Path(hints), 4)
    rates = ["0.03", "0.0003"]
    parameters: dict[str, Any] = {"work_dir": str(tmp_path / "jobs"), "rates": rates, "hints": hints, "epochs": "2"}
    assert digits_search(**parameters).output in rates
    jobs = [tmp_path / "jobs" / f"rate-{rate}" for rate in rates]
    told = [next(one for one in read_events(job / "events.jsonl") if one.kind == "hint_applied") for job in jobs]
    assert [one["allowed"] for one in told] == [2, 2]  # of 4 GPUs, however many trials there are
    events = [(job / "events.jsonl").stat().st_size for job in jobs]
    assert digits_search(**parameters).output in rates
    assert [(job / "events.jsonl").stat().st_size for job in jobs] == events, "what is done is not done again"


def test_a_step_is_as_large_as_was_planned(tmp_path: Path, hints: str) -> None:
    done = plan_train_evaluate(hints=hints, epochs="60", max_nodes=2, report_uri=str(tmp_path / "report"))
    assert done.output > 0.8
    (report,) = (tmp_path / "report").iterdir()  # of its job
    assert json.loads((report / "metrics.json").read_text())["world_size_final"] == 2


def test_a_keras_model_is_trained(hints: str) -> None:
    assert digits_keras(hints=hints, max_nodes=2, epochs="6").output > 0.9


def shrink(hints: Path, job: Path) -> threading.Thread:
    """Allows one GPU when two nodes train."""

    def allow_one() -> None:
        events = EventFollower(job / "events.jsonl")
        until(
            lambda: any(event.kind == "generation_formed" and event["nodes"] == 2 for event in events.poll()),
            "two nodes train",
            2 * LONG,  # a step before the training imports torch, too
        )
        allow(hints, 1)

    admin = threading.Thread(target=allow_one, daemon=True)
    admin.start()
    return admin


def test_a_model_of_transformers_is_tuned_while_its_quota_shrinks(
    tmp_path: Path, hints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    job = tmp_path / "job"
    admin = shrink(Path(hints), job)
    assert gpt_lora(hints=hints, epochs="3", work_dir=str(job)).output > 1.05
    admin.join()
    sizes = [event["nodes"] for event in read_events(job / "events.jsonl") if event.kind == "generation_formed"]
    assert sizes[-2:] == [2, 1]


def test_a_text_model_is_tuned(hints: str) -> None:
    assert text_tuning(hints=hints, max_nodes=2, epochs="1").output > 1.02


def test_a_failure_that_is_reported_turns_red_one_step_later(capfd: pytest.CaptureFixture[str]) -> None:
    @dsl.pipeline(name="reported")
    def reported():  # type: ignore[no-untyped-def]
        training = elastic_train_distributed(script=FAILING, engine="local", on_failure="report")
        elastic_verdict(exit_code=training.outputs["exit_code"], reason=training.outputs["reason"])

    with pytest.raises(RuntimeError, match="elastic-verdict"):
        reported()
    shown = capfd.readouterr().out
    assert "ArithmeticError: the third wheel came off" in shown[shown.rindex("StepFailed: ") :]


def test_what_a_script_says_of_its_classes_is_shown_by_a_step_of_its_own() -> None:
    @dsl.pipeline(name="classes")
    def classes() -> dsl.ClassificationMetrics:
        training = elastic_train(script=CLASSIFYING)
        return elastic_classification(metrics=training.outputs["metrics"]).outputs["classification"]

    found = classes().output.metadata["confusionMatrix"]
    assert [row["row"] for row in found["rows"]] == [[8, 1], [0, 9]]


def test_a_shrink_ends_a_step_that_is_to_release_its_gpus_and_the_next_one_goes_on(
    tmp_path: Path, hints: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    parameters: dict[str, Any] = {"max_nodes": 2, "hints": hints, "release": "exit", "on_failure": "report"}

    shrink(Path(hints), job)
    first = elastic_train(script=SLOW, work_dir=str(job), **parameters).outputs
    assert first["exit_code"] == 75
    assert 'release="exit": the hint gives it 1 of its 2 nodes' in capfd.readouterr().out
    again = elastic_train(script=SLOW, work_dir=str(job), **parameters).outputs
    assert (again["exit_code"], again["world_size_final"]) == (0, 1)
    assert again["steps"] == 120
    assert 0 < first["steps"] < 120
