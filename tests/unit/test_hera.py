"""The Hera front: the same job as the command line's, the same pod as Argo's, and a ``Container`` to all of Hera."""

# No postponed annotations: Hera's hooks are found by the class in their annotation.

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hera.shared import global_config, register_pre_build_hook
from hera.workflows import (
    DAG,
    Artifact,
    ClusterWorkflowTemplate,
    Container,
    CronWorkflow,
    EmptyDirVolume,
    Env,
    ExistingVolume,
    Parameter,
    Resources,
    RetryStrategy,
    Steps,
    Volume,
    Workflow,
    WorkflowTemplate,
    models,
    script,
)

from elastic_launcher import argo
from elastic_launcher.cli import main
from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.objects.template import read_template
from elastic_launcher.hera import ElasticTrain, PodFields, elastic_train
from elastic_launcher.launcher.step_outputs import OUTPUTS
from elastic_launcher.options import OPTIONS, ConfigError
from elastic_launcher.variables import STEP_OUTPUTS
from tests.support.expansion import expanded

Front = Callable[..., Container]
FRONTS = [ElasticTrain, elastic_train]
IMAGE = "registry.example/train:3"


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Leaves Hera's settings as they were."""
    before = dict(vars(global_config))
    global_config.reset()
    yield
    vars(global_config).update(before)


@pytest.fixture(params=FRONTS, ids=["class", "factory"])
def front(request: pytest.FixtureRequest) -> Front:
    found: Front = request.param
    return found


def built(front: Front, **fields: Any) -> dict[str, Any]:
    """Returns the template that a step becomes in a Workflow."""
    with Workflow(name="w", entrypoint="train") as workflow:
        front(**{"name": "train", "image": IMAGE, **fields})
    (template,) = workflow.to_dict()["spec"]["templates"]
    found: dict[str, Any] = template
    return found


def asked(template: dict[str, Any]) -> JobConfig:
    """Returns the job that the command line reads from a step's container."""
    name, *words = (expanded(word, {"HOME": argo.HOME}) for word in template["container"]["args"])
    run = typer.main.get_command(main.app).get_command(None, name)  # type: ignore[attr-defined]
    texts = run.make_context(name, words).params
    return JobConfig.from_texts(texts, texts.pop("command") or ())


def test_every_option_is_a_field_of_the_same_name_without_a_default_of_its_own() -> None:
    others = {field.name for field in dataclasses.fields(Container)}
    fields = {field.name: field.default for field in dataclasses.fields(ElasticTrain) if field.name not in others}
    assert set(fields) == {option.key for option in OPTIONS} - {"name"} | {"job_name"}
    assert set(fields.values()) == {None}, "class defaults of Hera's apply only where nothing is"


def test_the_factory_takes_what_the_class_takes() -> None:
    assert inspect.signature(elastic_train).parameters == inspect.signature(ElasticTrain).parameters
    assert type(elastic_train(name="train", script="train.py")) is Container


def test_what_a_step_says_is_what_the_launcher_reads(front: Front) -> None:
    template = built(
        front,
        module="pkg.train",
        arguments=["--text", "a 'b' \"c\"", "--lr", "0.1"],
        nodes="2:5",
        engine="kubernetes",
        pod_template=PodFields(labels={"team": "vision"}, env=[{"name": "LR", "value": "1"}]),
        nproc_per_node=4,
        hints="configmap/quota/gpu-hints",
        match={"queue": "team-a", "pipeline": "p"},
        project="nlp",
        priority=-5,
        share="2/3",
        require_hints=True,
        wait_for_quota=12.5,
        node_timeout=900,
        max_runtime="12h",
        metrics_port=9400,
        start_timeout=30,
        max_failures=3,
        global_batch_size=256,
        max_batch_per_gpu="auto",
        checkpoint_every="100 steps",
        checkpoint_dir="s3://models/digits",
        job_name="digits",
    )
    config = asked(template)
    assert config == JobConfig(
        module="pkg.train",
        arguments=("--text", "a 'b' \"c\"", "--lr", "0.1"),
        name="digits",
        min_nodes=2,
        max_nodes=5,
        engine="kubernetes",
        pod_template=config.pod_template,
        nproc_per_node=4,
        hints="configmap/quota/gpu-hints",
        match={"queue": "team-a", "pipeline": "p"},
        project="nlp",
        priority=-5,
        share=(2, 3),
        require_hints=True,
        wait_for_quota=12.5,
        node_timeout=900.0,
        max_runtime=43200.0,
        metrics_port=9400,
        start_timeout=30.0,
        max_failures=3,
        global_batch_size=256,
        max_batch_per_gpu="auto",
        checkpoint_every="100 steps",
        checkpoint_dir="s3://models/digits",
    )
    assert read_template(str(config.pod_template))["metadata"] == {"labels": {"team": "vision"}}


def test_a_step_that_says_only_its_script_is_the_default_job(front: Front) -> None:
    assert asked(built(front, script="train.py")) == JobConfig(script="train.py")
    text = "import torch\nprint(1)\n"
    assert asked(built(front, script=text)) == JobConfig(script=text)


def test_dollars_reach_the_script(front: Front) -> None:
    text, words = "import os\nprint('$$5 $(HOME)')\n", ["pa$$word", "$(HOME)", "$x", "--nodes=$$"]
    config = asked(built(front, script=text, arguments=words, data="/data/$(HOME)"))
    assert (config.script, config.arguments, config.data) == (text, tuple(words), "/data/$(HOME)")


def test_numbers_and_booleans_are_words_as_json_has_them(front: Front) -> None:
    words = ["--epochs", 3, 1.0, True, Path("data")]
    assert asked(built(front, script="train.py", arguments=words)).arguments == ("--epochs", "3", "1.0", "true", "data")
    as_text = built(front, script="train.py", arguments='["--epochs", 3, 1.0, true, "data"]')
    assert asked(as_text) == asked(built(front, script="train.py", arguments=words))


def test_its_pod_is_that_of_argos_template(front: Front) -> None:
    template, wanted = built(front, script="train.py"), argo.step_template("train")
    for key in ("metadata", "retryStrategy", "securityContext", "volumes", "outputs"):
        assert template[key] == wanted[key]
    for key in ("command", "workingDir", "env", "resources", "securityContext", "volumeMounts"):
        assert template["container"][key] == wanted["container"][key]
    assert template["container"]["terminationMessagePolicy"] == wanted["container"]["terminationMessagePolicy"]


def test_all_that_is_preset_can_be_overridden(front: Front) -> None:
    template = built(
        front,
        script="train.py",
        command=["tini", "--", "elastic-launcher"],
        labels={"team": "vision", "app.kubernetes.io/component": "trial"},
        annotations={"workflows.argoproj.io/progress": "0/16"},
        retry_strategy=RetryStrategy(limit=1, retry_policy="OnError"),
        resources=Resources(gpus=2),
        pod_security_context=models.PodSecurityContext(run_as_user=1000),
        security_context=models.SecurityContext(run_as_group=1000),
        working_dir="/work",
        termination_message_policy="File",
        env=[Env(name="HOME", value="/work"), models.EnvVar(name="LR", value="0.1"), {"USER": "me"}],
        volumes=[
            ExistingVolume(name="work", claim_name="c", mount_path="/work"),
            EmptyDirVolume(name="own", mount_path="/tmp/"),
        ],
        volume_mounts=[models.VolumeMount(name="work", mount_path="/dev/shm", sub_path="shm")],
    )
    container = template["container"]
    assert container["command"] == ["tini", "--", "elastic-launcher"]
    assert template["metadata"]["labels"] == {"team": "vision", "app.kubernetes.io/component": "trial"}
    assert template["metadata"]["annotations"] == argo.ANNOTATIONS | {"workflows.argoproj.io/progress": "0/16"}
    assert template["retryStrategy"] == {"limit": 1, "retryPolicy": "OnError"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert template["securityContext"] == {"runAsUser": 1000}
    assert container["securityContext"] == {"runAsGroup": 1000}
    assert (container["workingDir"], container["terminationMessagePolicy"]) == ("/work", "File")
    values = [(one["name"], one["value"]) for one in container["env"] if "value" in one]
    preset = [("TMPDIR", "/tmp"), ("LOGNAME", "elastic"), (STEP_OUTPUTS, argo.OUTPUT_FOLDER)]
    assert values == [*preset, ("HOME", "/work"), ("LR", "0.1"), ("USER", "me")]
    mounts = sorted((one["mountPath"], one["name"]) for one in container["volumeMounts"])
    scratch = argo.VOLUMES[0]["name"]
    assert mounts == [("/dev/shm", "work"), ("/home/elastic", scratch), ("/tmp/", "own"), ("/work", "work")]
    assert [one["name"] for one in template["volumes"]] == [scratch, "work", "own"]


OWN = models.Parameter(name="goodput", value_from=models.ValueFrom(path="/work/goodput"))
BEST = Parameter(name="best", value_from=models.ValueFrom(path="/work/best"))
REPORT = Artifact(name="report", path="/work/job/report.html")


@pytest.mark.parametrize("outputs", [[OWN, BEST, REPORT], models.Outputs(parameters=[OWN, BEST.as_output()])])
def test_outputs_of_its_own_are_added_and_take_the_place_of_preset_ones(front: Front, outputs: Any) -> None:
    found = built(front, script="train.py", outputs=outputs)["outputs"]
    paths = {one["name"]: one["valueFrom"]["path"] for one in found["parameters"]}
    assert paths == {
        **{name: f"{argo.OUTPUT_FOLDER}/{name}" for name in OUTPUTS},
        "goodput": "/work/goodput",
        "best": "/work/best",
    }
    assert [one["path"] for one in found.get("artifacts", ())] == ([REPORT.path] if isinstance(outputs, list) else [])


def test_a_following_step_takes_an_output_by_its_name() -> None:
    with Workflow(name="w", entrypoint="main"):
        train = ElasticTrain(name="train", script="train.py")
        with DAG(name="main"):
            assert train().get_parameter("exit_code").value == "{{tasks.train.outputs.parameters.exit_code}}"


def test_args_are_the_launchers_own(front: Front) -> None:
    with pytest.raises(ConfigError, match="train: args are the launcher's"):
        built(front, script="train.py", args=["--lr"])


ON_CLUSTER = {"engine": "kubernetes", "checkpoint_dir": "/work/a"}
TWO = {"limits": {"nvidia.com/gpu": "2"}}
SECRET = {"name": "a", "secret": {"secretName": "a"}}
BAD = [
    ({"nodes": "3"}, "--nodes is '3': it must be MIN:MAX"),
    ({"nodes": "3:2"}, "--nodes is '3:2'"),
    ({"nproc_per_node": 0}, "--nproc-per-node is '0': it must be a whole number"),
    ({"global_batch_size": -1}, "--global-batch-size is '-1'"),
    ({"share": "3/2"}, "--share is '3/2'"),
    ({"match": {"colour": "red"}}, "unknown key 'colour'"),
    ({"match": "queue"}, "--match is 'queue'"),
    ({"require_hints": True}, "--require-hints needs --hints"),
    ({"wait_for_quota": "soon"}, "--wait-for-quota is 'soon'"),
    ({"max_runtime": "later"}, "--max-runtime is 'later'"),
    ({"checkpoint_every": "often"}, "--checkpoint-every is 'often'"),
    ({"engine": "slurm"}, "--engine is 'slurm'"),
    ({"engine": "kubernetes"}, "--engine kubernetes needs --checkpoint-dir"),
    ({"rdzv_backend": "c10d"}, "--rdzv-backend c10d needs --resize respawn"),
    ({"accept_changes": "model"}, "--accept-changes is 'model'"),
    ({"module": "pkg.train"}, "--script and --module are both given"),
    ({"script": None}, "the script is missing"),
    (ON_CLUSTER | {"gpu_resource": "gpu"}, "--gpu-resource is 'gpu'"),
    (ON_CLUSTER | {"hints": "configmap/Quota"}, "--hints: 'configmap/Quota' is no place of hints"),
    (ON_CLUSTER | {"pod_template": "spec: [\n  a\n"}, "--pod-template: the pod template is not YAML"),
    (ON_CLUSTER | {"pod_template": PodFields(env=[{"name": "ELASTIC_KEY", "value": "x"}])}, "sets ELASTIC_KEY"),
    (ON_CLUSTER | {"pod_template": PodFields(resources=TWO), "nproc_per_node": 4}, "has 2 nvidia.com/gpu in limits"),
    (
        ON_CLUSTER | {"pod_template": PodFields(volumes=[SECRET], volume_mounts=[{"name": "a", "mountPath": "/work"}])},
        "--checkpoint-dir is /work/a: volume a",
    ),
    (ON_CLUSTER | {"pod_template": {"spec": {"containers": "node"}}}, "--pod-template: "),
    (ON_CLUSTER | {"pod_template": PodFields(volumes=[object()])}, "pod_template holds <object object"),
    (ON_CLUSTER | {"pod_template": PodFields(env={"A": "1"})}, "spec.containers[0].env"),
    (
        ON_CLUSTER | {"pod_template": PodFields(volumes=[Volume(name="work", size="1Gi", mount_path="/work")])},
        "pod_template has the volume work, a claim that the Workflow makes",
    ),
    ({"work_dir": "s3://b/jobs"}, "--work-dir is 's3://b/jobs': give a folder"),
    ({"arguments": "--lr '0.1"}, "it can't be split"),
    ({"arguments": 5}, "--arguments is 5: it must be one text, as on a command line, or a list"),
    ({"script": 'import torch\nprint(f"{{x}}")\n'}, "Argo takes for its own"),
    ({"script": "#" * 2**17 + "\n"}, "put the script into the image"),
]


@pytest.mark.parametrize(("fields", "said"), BAD)
def test_a_bad_parameter_is_refused_before_anything_is_submitted(
    front: Front, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        built(front, **{"script": "train.py", **fields})
    assert said in str(error.value)


def test_what_argo_fills_in_is_left_to_the_launcher(front: Front) -> None:
    template = built(
        front,
        script="{{inputs.parameters.script}}",
        arguments=["{{inputs.parameters.lr}}"],
        nodes="{{inputs.parameters.nodes}}",
        global_batch_size="{{inputs.parameters.batch}}",
        engine="{{inputs.parameters.engine}}",
        resize="respawn",
        checkpoint_dir="/work/{{workflow.name}}",
    )
    nodes, engine = "--nodes={{inputs.parameters.nodes}}", "--engine={{inputs.parameters.engine}}"
    assert template["container"]["args"][:3] == ["run", nodes, engine]
    with pytest.raises(ConfigError, match="--share is 'half'"):
        built(front, script="train.py", nodes="{{inputs.parameters.nodes}}", share="half")
    ranks = "{{inputs.parameters.ranks}}"
    hints = "configmap/{{inputs.parameters.hints}}"
    built(
        front, script="train.py", **ON_CLUSTER, nproc_per_node=ranks, hints=hints, pod_template=PodFields(resources=TWO)
    )


def test_class_defaults_and_global_settings_of_a_container_hold(front: Front) -> None:
    global_config.image = "registry.example/of-the-company:1"
    global_config.set_class_defaults(
        Container, labels={"company": "x"}, active_deadline_seconds=60, retry_strategy=RetryStrategy(limit=9)
    )
    template = built(front, script="train.py", image=None)
    assert template["container"]["image"] == "registry.example/of-the-company:1"
    assert template["metadata"]["labels"] == argo.LABELS | {"company": "x"}
    assert (template["activeDeadlineSeconds"], template["retryStrategy"]) == (60, {"limit": 9})
    global_config.set_class_defaults(Container, image="registry.example/of-containers:1")
    assert built(front, script="train.py", image=None)["container"]["image"] == "registry.example/of-containers:1"


def test_a_class_default_of_its_own_comes_before_a_containers(front: Front) -> None:
    global_config.set_class_defaults(Container, service_account_name="of-containers", scheduler_name="s")
    global_config.set_class_defaults(ElasticTrain, service_account_name="of-trainings", hints="configmap/quota/hints")
    template = built(front, script="train.py")
    assert (template["serviceAccountName"], template["schedulerName"]) == ("of-trainings", "s")
    assert "--hints=configmap/quota/hints" in template["container"]["args"]


def test_a_hook_for_containers_sees_a_step_as_a_container(front: Front) -> None:
    seen = []

    @register_pre_build_hook
    def company(container: Container) -> Container:
        seen.append(list(container.args or ()))
        container.labels = (container.labels or {}) | {"company": "x"}
        container.command = ["tini", "--", *(container.command or ())]
        return container

    template = built(front, script="train.py")
    assert template["metadata"]["labels"] == argo.LABELS | {"company": "x"}
    assert template["container"]["command"] == ["tini", "--", "elastic-launcher"]
    assert seen == [["run", "--script=train.py"]]


@pytest.mark.parametrize("copied", [dataclasses.replace, copy.copy, copy.deepcopy])
def test_a_hook_may_return_a_copy(front: Front, copied: Callable[[Container], Container]) -> None:
    @register_pre_build_hook
    def company(container: Container) -> Container:
        found = copied(container)
        found.labels = (found.labels or {}) | {"company": "x"}
        return found

    @register_pre_build_hook
    def of_the_team(step: ElasticTrain) -> ElasticTrain:
        found = copied(step)
        assert isinstance(found, ElasticTrain)
        return found

    template = built(front, script="train.py", arguments=["a"])
    assert template["metadata"]["labels"] == argo.LABELS | {"company": "x"}
    assert template["container"]["args"] == ["run", "--script=train.py", "--", "a"]


def test_a_hook_of_its_own_changes_options() -> None:
    @register_pre_build_hook
    def of_the_team(step: ElasticTrain) -> ElasticTrain:
        step.match = {"queue": "team-a"}
        return step

    class Ours(ElasticTrain):
        """A class of the user's."""

    for kind in (ElasticTrain, Ours):
        assert asked(built(kind, script="train.py")).match["queue"] == "team-a"


def test_a_hook_that_forgets_its_template_is_named() -> None:
    @register_pre_build_hook
    def forgetful(container: Container) -> Container:
        return None  # type: ignore[return-value]

    with pytest.raises(RuntimeError, match="pre-build hook forgetful returned None"):
        built(ElasticTrain, script="train.py")


def test_building_twice_gives_the_same(front: Front) -> None:
    with Workflow(name="w", entrypoint="train", volumes=[]) as workflow:
        front(name="train", image=IMAGE, script="train.py", labels={"a": "b"})
    assert workflow.to_dict() == workflow.to_dict()
    assert workflow.to_yaml() == workflow.to_yaml()


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("kind", [DAG, Steps])
def test_it_is_called_in_a_dag_and_in_steps_beside_functions(front: Front, kind: Any, outside: bool) -> None:
    @script(image=IMAGE)
    def prepare(path: str) -> None:
        print(path)

    fields = {"name": "train", "image": IMAGE, "script": "train.py", "inputs": [Parameter(name="lr", default="1")]}
    before = front(**fields) if outside else None
    with Workflow(name="w", entrypoint="main") as workflow:
        step: Any = before or front(**fields)
        with kind(name="main"):
            prepare(arguments={"path": "/work"})
            step(name="first", arguments={"lr": "0.1"})
            step(name="second", arguments={"lr": "0.2"})
    document = workflow.to_dict()["spec"]
    templates = {one["name"]: one for one in document["templates"]}
    assert sorted(templates) == ["main", "prepare", "train"] and len(document["templates"]) == 3
    calls = templates["main"].get("dag", {}).get("tasks") or [one for (one,) in templates["main"]["steps"]]
    assert [one["template"] for one in calls] == ["prepare", "train", "train"]
    assert templates["train"]["container"]["args"] == ["run", "--script=train.py"]
    assert document["podGC"] == argo.POD_GC


def test_nodes_pods_are_said_with_heras_own_objects_or_as_a_dict(front: Front) -> None:
    claim = ExistingVolume(name="work", claim_name="data", mount_path="/work", read_only=False)
    fields = PodFields(
        env=[Env(name="A", value=1), {"name": "B", "value": "2"}],
        resources=Resources(gpus=1, memory_request="1Gi"),
        volumes=[claim],
        volume_mounts=[{"name": "work", "mountPath": "/data"}],
        tolerations=models.Toleration(key="gpu", operator="Exists"),
        affinity=models.Affinity(node_affinity=models.NodeAffinity()),
    )
    said = asked(built(front, **ON_CLUSTER, script=Path("train.py"), pod_template=fields))
    assert said.script == "train.py"
    spec = read_template(str(said.pod_template))["spec"]
    (container,) = spec["containers"]
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    mounts = [{"name": "work", "mountPath": "/data"}, {"name": "work", "mountPath": "/work", "readOnly": False}]
    assert container["volumeMounts"] == mounts
    assert spec["volumes"] == [{"name": "work", "persistentVolumeClaim": {"claimName": "data", "readOnly": False}}]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    whole = {"metadata": {"labels": {"a": "b"}}, "spec": {"volumes": [claim], "nodeSelector": {"c": "d"}}}
    document = read_template(str(asked(built(front, **ON_CLUSTER, script="train.py", pod_template=whole)).pod_template))
    assert document["metadata"] == {"labels": {"a": "b"}}
    assert (document["spec"]["volumes"], document["spec"]["nodeSelector"]) == (spec["volumes"], {"c": "d"})


class CompanyWorkflow(Workflow):
    """A Workflow with the defaults of a company, say."""


KINDS = [Workflow, WorkflowTemplate, ClusterWorkflowTemplate, CronWorkflow, CompanyWorkflow]


@pytest.mark.parametrize("kind", KINDS)
def test_pod_gc_is_preset_for_workflows_with_such_a_step_alone(front: Front, kind: Any) -> None:
    more = {"schedules": ["0 0 * * *"]} if kind is CronWorkflow else {}

    def spec(step: Front, **fields: Any) -> dict[str, Any]:
        with kind(name="w", entrypoint="train", **more, **fields) as workflow:
            step(**{"name": "train", "image": IMAGE} | ({} if step is Container else {"script": "train.py"}))
        document = workflow.to_dict()["spec"]
        found: dict[str, Any] = document.get("workflowSpec", document)
        return found

    assert spec(front)["podGC"] == {"strategy": "OnPodCompletion"}
    assert spec(front, pod_gc=models.PodGC(strategy="OnPodSuccess"))["podGC"] == {"strategy": "OnPodSuccess"}
    assert "podGC" not in spec(Container)
