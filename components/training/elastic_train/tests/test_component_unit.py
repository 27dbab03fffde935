"""The component's body, with the run itself replaced: which command it asks for, and how it fills its outputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import elastic_launcher
from elastic_launcher import kfp as front
from elastic_launcher._components.training.elastic_train import component

HERE = Path(__file__).resolve().parents[1]
TRAINED = front.Trained(
    work_dir="/jobs/1",
    metrics={
        "world_size_final": 2,
        "resizes_total": 3,
        "goodput": 0.9,
        "samples_per_second": 55.5,
        "steps": 120,
        "test_accuracy": 0.98,
    },
    timeline="<html>timeline</html>",
    summary="# summary",
)


class Step:
    """The component called as a function, with artifacts in a folder and a run that only notes what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.artifacts = {name: SimpleNamespace(path=str(folder / name)) for name in ("model", "timeline", "summary")}
        self.artifacts["metrics"] = SimpleNamespace(log_metric=self.metrics.__setitem__)
        monkeypatch.setattr(front, "train", self.train)

    def train(self, **asked: Any) -> front.Trained:
        self.asked = asked
        return TRAINED

    def run(self, **parameters: Any) -> tuple[Any, ...]:
        return component.elastic_train.python_func(**self.artifacts, **parameters)


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(tmp_path, monkeypatch)


def test_outputs_are_what_the_run_has_left(step: Step) -> None:
    scalars = step.run(script="train.py")
    assert scalars == (2, 3, 0.9, 120, "/jobs/1")
    assert step.metrics == TRAINED.metrics
    assert Path(step.artifacts["timeline"].path).read_text() == TRAINED.timeline
    assert Path(step.artifacts["summary"].path).read_text() == TRAINED.summary


def test_artifacts_paths_are_the_runs_data_and_output(step: Step, tmp_path: Path) -> None:
    step.run(script="train.py", data=SimpleNamespace(path="/in/digits"))
    assert step.asked["options"]["data"] == "/in/digits"
    assert step.asked["options"]["output"] == str(tmp_path / "model")


def test_without_data_none_is_passed_on(step: Step) -> None:
    step.run(module="package.train", arguments=["--epochs", "3"])
    assert step.asked["options"]["data"] is None
    assert (step.asked["module"], step.asked["arguments"]) == ("package.train", ["--epochs", "3"])


def test_batch_sizes_of_0_are_the_scripts_own(step: Step) -> None:
    step.run(script="train.py", global_batch_size=256)
    assert (step.asked["options"]["global_batch_size"], step.asked["options"]["max_batch_per_gpu"]) == (256, None)


def test_it_installs_this_very_version() -> None:
    assert f"=={elastic_launcher.__version__}'" in " ".join(
        component.elastic_train.component_spec.implementation.container.command
    )


def test_the_readme_names_every_parameter_and_output() -> None:
    readme = (HERE / "README.md").read_text()
    spec = component.elastic_train.component_spec
    missing = [name for name in [*spec.inputs, *spec.outputs] if f"| `{name}` |" not in readme]
    assert missing == []
