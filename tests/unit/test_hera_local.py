"""A Hera step on this machine: the same training, without what only a cluster has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hera.workflows import Env, Parameter, models

from elastic_launcher import hera
from elastic_launcher.hera import ElasticTrain, PodFields, StepFailed
from elastic_launcher.options import ConfigError
from tests.support.places import ROOT

IMAGE = "registry.example/train:3"


class Runs:
    """Stands for what runs a step here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Any] = {}
        monkeypatch.setattr(hera, "train", self.train)

    def train(self, **asked: Any) -> str:
        self.asked = asked
        return "trained"


def test_the_same_step_runs_here_without_what_only_a_cluster_has(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    step = ElasticTrain(
        name="train",
        image=IMAGE,
        script="/work/train.py",
        arguments=["--lr", "{{inputs.parameters.lr}}", "--seed", "{{inputs.parameters.seed}}"],
        nodes="{{inputs.parameters.nodes}}",
        engine="kubernetes",
        hints="configmap/quota/gpu-hints",
        require_hints=True,
        pod_template=PodFields(labels={"a": "b"}),
        checkpoint_dir="/work/{{workflow.name}}",
        match={"queue": "{{inputs.parameters.queue}}"},
        inputs=[
            Parameter(name="lr", default="0.1"),
            Parameter(name="seed"),
            Parameter(name="queue", value="q"),
            Parameter(
                name="nodes",
                value_from=models.ValueFrom(
                    config_map_key_ref=models.ConfigMapKeySelector(name="size", key="nodes"), default="1:3"
                ),
            ),
        ],
        env=[Env(name="LR", value="{{inputs.parameters.lr}}")],
    )
    step.run_local(inputs={"seed": "7"}, script="train.py", checkpoint_dir=None, work_dir="job")
    options = {key: value for key, value in runs.asked["options"].items() if value is not None}
    assert options == {"nodes": "1:3", "match": {"queue": "q"}}
    assert (runs.asked["script"], runs.asked["module"], runs.asked["work_dir"]) == ("train.py", "", "job")
    assert runs.asked["arguments"] == ("--lr", "0.1", "--seed", "7")
    assert runs.asked["environment"] == {"LR": "0.1"}
    with pytest.raises(ConfigError, match="--arguments is '{{inputs.parameters.seed}}', which Argo would fill in"):
        step.run_local(checkpoint_dir=None)
    with pytest.raises(ConfigError, match="--checkpoint-dir is '/work/{{workflow.name}}'"):
        step.run_local(inputs={"seed": "7"})
    with pytest.raises(ConfigError, match="there is no option 'image'"):
        step.run_local(image="x")


def test_the_documents_code_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "hera.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(blocks[0], names)
    with pytest.raises(AttributeError):  # what stands for the run has no folder
        exec(blocks[1], names)
    assert runs.asked["arguments"] == ("--rate", "0.3")
    (step, dag) = names["w"].to_dict()["spec"]["templates"]
    assert "--match=queue=team-a" in step["container"]["args"] and dag["name"] == "main"


def test_inputs_are_given_as_hera_gives_them_and_none_is_left_out_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    inputs = [Parameter(name="rate", default="0.1"), Parameter(name="sizes", default="[]")]
    words = ["--rate={{inputs.parameters.rate}}", "--sizes={{inputs.parameters.sizes}}"]
    step = ElasticTrain(name="train", image=IMAGE, script=Path("train.py"), arguments=words, inputs=inputs)
    step.run_local(inputs={"rate": 0.3, "sizes": [1, 2]})
    assert runs.asked["arguments"] == ("--rate=0.3", "--sizes=[1, 2]")
    assert runs.asked["script"] == "train.py"
    step.run_local(script=Path("other.py"))
    assert runs.asked["script"] == "other.py"
    with pytest.raises(ConfigError, match="run_local: train has no input 'rte'; it has rate, sizes"):
        step.run_local(inputs={"rte": "0.3"})


def test_a_work_directory_that_is_a_url_is_refused_before_anything_is_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = ElasticTrain(name="train", image=IMAGE, script="pass\n")
    with pytest.raises(ConfigError, match="--work-dir is 's3://b/jobs': give a folder"):
        step.run_local(work_dir="s3://b/jobs")
    assert not list(tmp_path.iterdir())


def test_a_step_that_can_not_run_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = ElasticTrain(name="train", image=IMAGE, script="none.py", arguments="--lr 0.1")
    with pytest.raises(StepFailed, match=r"nothing was started \(exit code 2\)(.|\n)*none.py is not there"):
        step.run_local()
