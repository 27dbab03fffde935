"""The body of both training components, the run itself replaced: what it asks for, and what it hands on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp import dsl

from elastic_launcher import kfp as front
from elastic_launcher.config import JobConfig
from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.job_plan import given_template, make_plan
from elastic_launcher.engines.kubernetes.leadership.bootstrap import ClusterContext
from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.engines.kubernetes.objects.names import Names, job_id_of, owner_of
from elastic_launcher.kfp_steps import training
from elastic_launcher.kfp_steps.classification import classification_step
from elastic_launcher.kfp_steps.release import ended_by_shrink
from elastic_launcher.lint.pipelines.pipeline import STEPS
from elastic_launcher.options import command_line
from elastic_launcher.pipeline_step import StepFailed, Trained
from elastic_launcher.resume_advice import SAME_COMMAND, resume_advice, retry_advice
from elastic_launcher.variables import DATA_SOURCE
from tests.support import histories
from tests.support import kfp_bodies as bodies
from tests.support.kfp_bodies import NUMBERS, Step
from tests.support.object_store import object_store


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(tmp_path / "artifacts", monkeypatch)


@pytest.fixture
def claim(tmp_path: Path) -> dict[str, Any]:
    return bodies.claim(tmp_path / "work")


def test_outputs_are_what_the_run_has_left(step: Step) -> None:
    assert step.run("elastic_train") == (2, 3, 0.9, 120, "/jobs/1", 0, "done")
    assert step.given["metrics"].metadata == NUMBERS
    assert Path(step.given["timeline"].path).read_text() == "<html>timeline</html>"
    assert Path(step.given["summary"].path).read_text() == "# summary"


def test_the_folder_is_named_where_somebody_can_open_it(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    step.left = step.folder / "job-1"
    given = {"report_uri": "/work/reports/1"}
    assert step.run("elastic_train", **given)[4] == str(step.left), "of a run on this machine"
    monkeypatch.setenv("KFP_POD_NAME", "p-system-container-impl-1")
    assert step.run("elastic_train", **given)[4] == "/work/reports/1", "the step's own files go with its pod"
    assert step.run("elastic_train")[4] == ""
    step.left = Path("/work/job")
    assert step.run("elastic_train", **given)[4] == "/work/job"


def test_the_timeline_is_made_for_a_frame(step: Step, tmp_path: Path) -> None:
    step.left = tmp_path / "job"
    step.left.mkdir()
    histories.write(histories.resized().events, step.left)
    step.run("elastic_train")
    assert 'content="light"' in Path(step.given["timeline"].path).read_text()


def test_a_step_without_pods_waits_for_no_http_client() -> None:
    code = "import sys; import elastic_launcher.kfp_steps.training; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_the_summary_is_in_the_log_too(step: Step, capsys: pytest.CaptureFixture[str]) -> None:
    step.run("elastic_train")
    assert "summary:\n# summary" in capsys.readouterr().out


def test_the_model_says_what_made_it(step: Step) -> None:
    step.run("elastic_train")
    found = step.given["model"].metadata
    assert found["framework"] == "pytorch"
    assert {"framework_version", "elastic_launcher_version"} <= set(found)


def shown(step: Step) -> dict[str, Any]:
    """Returns what ``elastic_classification`` makes of the step's metrics."""
    made = dsl.ClassificationMetrics(name="classification", uri=str(step.folder / "classification"))
    classification_step(step.given["metrics"], made)
    return dict(made.metadata)


def test_a_script_may_leave_a_confusion_matrix_and_a_curve(step: Step) -> None:
    points = [{"fpr": 0.0, "tpr": 0.5, "threshold": 0.9}]
    step.writes[training.CLASSES] = json.dumps({"labels": [0, 1], "matrix": [[8, 1], [0, 9]], "roc": points})
    step.run("elastic_train")
    found = shown(step)
    assert [one["displayName"] for one in found["confusionMatrix"]["annotationSpecs"]] == ["0", "1"]
    assert [row["row"] for row in found["confusionMatrix"]["rows"]] == [[8, 1], [0, 9]]
    assert found["confidenceMetrics"] == [{"confidenceThreshold": 0.9, "recall": 0.5, "falsePositiveRate": 0.0}]


def test_the_file_of_the_metrics_can_be_opened(step: Step) -> None:
    step.run("elastic_train")
    assert json.loads(Path(step.given["metrics"].path).read_text()) == {"metrics": step.given["metrics"].metadata}


def test_a_training_that_says_nothing_of_classes_has_no_artifact_for_them(step: Step) -> None:
    for name in STEPS:
        kinds = {key: one.type for key, one in getattr(front, name).component_spec.outputs.items()}
        assert not [key for key, kind in kinds.items() if kind.startswith("system.ClassificationMetrics")]
    step.run("elastic_train")
    with pytest.raises(StepFailed, match=r"said nothing of its classes: its script has to write \$ELASTIC_OUTPUT"):
        shown(step)


def test_the_roc_curve_of_scikit_learn_is_shown(step: Step) -> None:
    """Its first threshold is infinite: no score is above it."""
    points = '{"fpr": 0, "tpr": 0, "threshold": Infinity}, {"fpr": 0, "tpr": 0.5, "threshold": 0.75}'
    step.writes[training.CLASSES] = f'{{"roc": [{points}]}}'
    step.run("elastic_train")
    found = shown(step)["confidenceMetrics"]
    assert [one["confidenceThreshold"] for one in found] == [1.75, 0.75]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ('{"matrix": [[1]]}', '"labels" must be a list'),
        ('{"labels": ["a", "b"], "matrix": [[1, 2]]}', '"matrix" must have 2 rows of 2 numbers'),
        ('{"roc": [{"fpr": 0, "tpr": 0, "threshold": Infinity}]}', "the finite numbers fpr, tpr and threshold"),
        ('{"roc": {"fpr": [0]}}', "the finite numbers fpr, tpr and threshold"),
        (f'{{"labels": ["a"], "matrix": [[{10**400}]]}}', '"matrix" must have 1 rows of 1 numbers'),
        ("[" * 100_000, "recursion"),
        ("[1]", 'neither "matrix" nor "roc" is in it'),
        ("{", "Expecting property name"),
    ],
)
def test_what_is_no_classification_is_told_and_costs_nothing(
    step: Step, capsys: pytest.CaptureFixture[str], left: str, told: str
) -> None:
    step.writes[training.CLASSES] = left
    assert step.run("elastic_train")[5] == 0
    assert re.search(f"can't be shown \\(.*{re.escape(told)}", capsys.readouterr().out)
    with pytest.raises(StepFailed):
        shown(step)


def test_the_launcher_knows_where_the_data_is_from(step: Step, tmp_path: Path) -> None:
    (tmp_path / "digits").touch()
    data = SimpleNamespace(path=str(tmp_path / "digits"), uri="s3://bucket/digits")
    step.run("elastic_train", data=data)
    assert step.asked["environment"] == {DATA_SOURCE: "s3://bucket/digits"}
    step.run("elastic_train")
    assert not step.asked["environment"]


def test_line_breaks_and_spaces_around_a_text_are_not_part_of_it(
    step: Step, claim: dict[str, Any], tmp_path: Path
) -> None:
    """What was pasted into a form, or comes from a ConfigMap or from another task's output."""
    step.run("elastic_train", work_dir=f"{tmp_path}/job\n", on_failure=" report", report_uri=" ", hints="h.json\n")
    assert step.asked["work_dir"] == f"{tmp_path}/job"
    assert step.asked["beside"] == []
    assert step.options["output"] == f"{tmp_path}/job.model"
    assert step.options["hints"] == "h.json"
    step.run(
        "elastic_train_distributed",
        task_config=bodies.task(**claim),
        node_image="ml/train:1",
        shared_dir=f" {tmp_path}/work\n",
        script="\nprint(1)\n  print(2)\n",
    )
    assert Path(step.options["checkpoint_dir"]).parents[1] == tmp_path / "work"
    assert step.asked["script"] == "\nprint(1)\n  print(2)\n"


def test_nodes_are_as_many_as_the_pod_has_gpus(step: Step) -> None:
    step.run("elastic_train")
    assert step.options["nodes"] == "1:3"
    step.run("elastic_train", nproc_per_node=2)
    assert step.options["nodes"] == "1:1"
    step.run("elastic_train", max_nodes=2)
    assert step.options["nodes"] == "1:2"


def test_a_pod_that_keeps_its_gpus_says_so(step: Step, capsys: pytest.CaptureFixture[str]) -> None:
    step.run("elastic_train", hints="hints.json")
    assert "a shrink frees none for others" in capsys.readouterr().out
    step.run("elastic_train", hints="hints.json", release="exit")
    assert "a shrink frees none for others" not in capsys.readouterr().out
    assert step.asked["beside"] == [ended_by_shrink]


@pytest.mark.parametrize(("name", "value"), [("on_failure", "ignore"), ("release", "yes")])
def test_a_bad_word_is_refused_before_anything_runs(step: Step, name: str, value: str) -> None:
    with pytest.raises(StepFailed, match=f"{name} is '{value}': it must be .*exit code 2") as refused:
        step.run("elastic_train", **{name: value})
    assert refused.value.exit_code == 2
    assert not step.asked


def test_a_task_config_without_anything_is_fine(step: Step) -> None:
    step.run("elastic_train_distributed", engine="local")
    assert step.config == JobConfig("train.py", output=str(step.folder / "model"))


def test_what_is_set_on_the_task_is_the_nodes(step: Step, claim: dict[str, Any], tmp_path: Path) -> None:
    task = bodies.task(**claim, resources={"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}})
    step.run("elastic_train_distributed", task_config=task, max_nodes=4, shared_dir=f"{tmp_path}/work/digits")
    config = step.config
    assert (config.engine, config.nproc_per_node, config.max_nodes) == ("kubernetes", 2, 4)
    template = yaml.safe_load(str(config.pod_template))
    (container,) = template["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}}
    assert template["spec"]["volumes"] == claim["volumes"]
    assert template["metadata"]["labels"] == {"pipeline/runid": "run-1"}
    assert any(word.startswith("--pod-template={") for word in command_line(step.options))


def test_two_numbers_of_gpus_are_refused(step: Step) -> None:
    task = bodies.task(resources={"limits": {"nvidia.com/gpu": "2"}})
    with pytest.raises(StepFailed, match="nproc_per_node is 3, and set_accelerator_limit gives each node 2 GPUs"):
        step.run("elastic_train_distributed", task_config=task, nproc_per_node=3, checkpoint_dir="s3://b/c")


def test_nodes_without_the_launcher_in_their_image_are_refused(step: Step) -> None:
    step.pod = bodies.pod(image="docker.io/library/python:3.11")
    with pytest.raises(StepFailed, match="has no elastic-launcher: give node_image"):
        step.run("elastic_train_distributed", checkpoint_dir="s3://b/c")


def test_data_and_model_travel_through_a_volume(step: Step, claim: dict[str, Any], tmp_path: Path) -> None:
    digits = tmp_path / "digits.npz"
    digits.write_text("pixels")
    data = SimpleNamespace(path=str(digits), uri="minio://mlpipeline/digits")
    shared = f"{tmp_path}/work/digits"
    step.run("elastic_train_distributed", task_config=bodies.task(**claim), shared_dir=shared, data=data)
    seen = step.options
    assert all(str(seen[key]).startswith(f"{shared}/") for key in ("data", "output", "checkpoint_dir"))
    assert Path(step.given["model"].path).read_text() == "weights"
    assert not Path(seen["data"]).exists(), "a copy is of no use any more"
    assert Path(seen["output"]).exists(), "another attempt, which finds the job done, gives the model again"


def test_a_copy_of_the_data_under_a_url_goes_too(step: Step, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "part").write_text("pixels")
    data = SimpleNamespace(path=f"{tmp_path}/digits", uri="minio://mlpipeline/digits")
    with object_store(tmp_path / "buckets") as store:
        copies: list[set[str]] = []

        def note(**asked: Any) -> Trained:
            copies.append({path.name for path in store.bucket.rglob("data*")})
            return Trained("/jobs/1", dict(NUMBERS), "", "")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(training, "train", note)
            step.run("elastic_train_distributed", shared_dir=store.url, data=data)
        assert copies == [{"data", "data.whole"}]
        assert [path for path in store.bucket.rglob("*") if path.is_file()] == []


def test_an_artifact_without_a_way_is_refused_before_a_pod_is_made(step: Step) -> None:
    data = SimpleNamespace(path="/minio/digits", uri="minio://mlpipeline/digits")
    with pytest.raises(StepFailed, match="model: nodes have no way to .*mount a volume claim") as refused:
        step.run("elastic_train_distributed", data=data, checkpoint_dir="minio://mlpipeline/checkpoints")
    assert refused.value.exit_code == 2
    assert not step.asked


@pytest.mark.parametrize("name", ["elastic_train", "elastic_train_distributed"])
@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, "--nodes is '3:2': it must be MIN:MAX"),
        ({"min_nodes": 0}, "--nodes is '0:"),
        ({"keep_checkpoints": 0}, "--keep-checkpoints is '0': it must be a whole number, 1 or more"),
        ({"work_dir": "s3://b/jobs"}, "--work-dir is 's3://b/jobs': give a folder"),
        ({"nproc_per_node": -1}, "--nproc-per-node is '-1': it must be a whole number, 1 or more"),
        ({"share": "half"}, "--share is 'half'"),
        ({"match": {"colour": "red"}}, "--match has the unknown key 'colour'"),
        ({"require_hints": True}, "--require-hints needs --hints"),
        ({"wait_for_quota": -1.0}, "--wait-for-quota is -1"),
        ({"max_runtime": "soon"}, "--max-runtime is 'soon'"),
        ({"metrics_port": 70000}, "--metrics-port is 70000"),
        ({"checkpoint_every": "often"}, "--checkpoint-every is 'often'"),
        ({"accept_changes": "everything"}, "--accept-changes is 'everything'"),
        ({"module": "package.train"}, "give either script or module"),
    ],
)
def test_a_bad_parameter_is_red_with_the_command_lines_message(
    step: Step, claim: dict[str, Any], tmp_path: Path, name: str, parameters: dict[str, Any], told: str
) -> None:
    of_nodes = {"task_config": bodies.task(**claim), "shared_dir": f"{tmp_path}/work"}
    with pytest.raises(StepFailed) as refused:
        step.run(name, **parameters, **(of_nodes if name == "elastic_train_distributed" else {}))
    assert told in str(refused.value)
    assert refused.value.exit_code == 2
    assert not step.asked
    assert not list((tmp_path / "work").iterdir()), "nothing is copied before that"


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("elastic_train", "resize", "--resize is 'other': it must be in-process or respawn"),
        ("elastic_train", "rdzv_backend", "--rdzv-backend is 'other': it must be elastic-launcher or c10d"),
        ("elastic_train_distributed", "engine", "--engine is 'other': it must be local or kubernetes"),
    ],
)
def test_a_word_that_is_no_choice_is_red_with_the_command_lines_message(
    step: Step, name: str, key: str, told: str
) -> None:
    with pytest.raises(StepFailed) as refused:
        step.run(name, **{key: "other"})
    assert told in str(refused.value)
    assert refused.value.exit_code == 2
    assert not step.asked


@pytest.mark.parametrize("url", ["foo://bucket/report", "memory://report", "s3://"])
def test_a_report_for_a_place_that_nobody_can_reach_is_refused_before_anything_runs(step: Step, url: str) -> None:
    with pytest.raises(StepFailed, match="report_uri: .*exit code 2") as refused:
        step.run("elastic_train", report_uri=url)
    assert refused.value.exit_code == 2
    assert not step.asked


def test_a_node_of_no_ranks_is_refused_where_no_gpus_could_say_how_many(step: Step) -> None:
    with pytest.raises(StepFailed, match="--nproc-per-node is '0': it must be a whole number, 1 or more"):
        step.run("elastic_train", nproc_per_node=0)
    assert not step.asked


def test_nodes_without_a_place_for_checkpoints_are_refused(step: Step) -> None:
    with pytest.raises(StepFailed, match="nodes need a place that they all see for checkpoints: mount a volume claim"):
        step.run("elastic_train_distributed")


def test_a_node_is_made_of_what_the_task_says(step: Step, claim: dict[str, Any], tmp_path: Path) -> None:
    resources = {"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}, "requests": {"cpu": "1"}}
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    task = bodies.task(**claim, resources=resources, tolerations=tolerations, env=[{"name": "REGION", "value": "eu"}])
    step.run("elastic_train_distributed", task_config=task, max_nodes=4, shared_dir=f"{tmp_path}/work")
    context = ClusterContext("ml", step.pod, owner_of(step.pod), Names(job_id_of(step.pod)), [], [])
    plan = make_plan(step.config, given_template(step.config), context, "10.96.0.7")
    job = node_job(plan, NodeSpec(1, 1, step.config.nproc_per_node))
    assert job["metadata"]["labels"]["pipeline/runid"] == "run-1", "what elastic_cleanup looks for"
    spec = job["spec"]["template"]["spec"]
    assert spec["tolerations"] == tolerations
    (container,) = spec["containers"]
    assert container["resources"] == resources
    assert {one["name"]: one.get("value") for one in container["env"]}["REGION"] == "eu"
    assert claim["volume_mounts"][0] in container["volumeMounts"]


def test_a_job_that_was_done_before_gives_its_model_again(step: Step, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    step.run("elastic_train", work_dir=f"{jobs}/trial-1")
    Path(step.given["model"].path).unlink()
    step.writes = {}  # as a launcher does that finds its job done
    step.run("elastic_train", work_dir=f"{jobs}/trial-1")
    assert Path(step.given["model"].path).read_text() == "weights"


def test_two_iterations_and_a_retry(step: Step, claim: dict[str, Any], tmp_path: Path) -> None:
    folders = []
    for node_name in (
        "p(0).root(0).loop(0).iteration-iterations(0:0).train(0).executor(0)",
        "p(0).root(0).loop(0).iteration-iterations(1:1).train(0).executor(0)",
        "p(0).root(0).loop(0).iteration-iterations(1:1).train(1).executor(2)",
    ):
        step.pod = bodies.pod(node_name)
        step.run("elastic_train_distributed", task_config=bodies.task(**claim), shared_dir=f"{tmp_path}/work")
        folders.append((step.options["checkpoint_dir"], step.asked["work_dir"]))
    first, second, again = folders
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert again == second
    assert again[1].startswith(f"{tmp_path}/work/"), "where the events outlive the pod, nodes are taken over"


@pytest.mark.parametrize(
    ("pod", "given", "says"),
    [
        ("", {"work_dir": "/work/job"}, ""),
        ("pod-1", {"work_dir": "/work/job"}, "; Retry of the run resumes from there"),
        ("pod-1", {"checkpoint_dir": "s3://bucket/run"}, "; Retry of the run resumes from there"),
        ("pod-1", {}, ", in this step's pod, and goes with that: give checkpoint_dir to go on from it"),
    ],
)
def test_the_launcher_says_how_a_run_goes_on(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pod: str, given: dict[str, str], says: str
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", pod) if pod else monkeypatch.delenv("KFP_POD_NAME", raising=False)
    if "work_dir" in given:
        given = {"work_dir": str(tmp_path / "job")}
    step.run("elastic_train", **given)
    assert resume_advice(step.asked["environment"]) == (says or SAME_COMMAND)
    again = "Retry of the run resumes the job" if pod else "the same command resumes the job"
    assert retry_advice(step.asked["environment"]) == again
