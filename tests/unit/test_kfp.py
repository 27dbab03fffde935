"""The KFP front: the arguments it makes, its agreement with the option table, the pipelines compiled to golden IR."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl
from kfp.dsl.graph_component import GraphComponent

from components.training.elastic_train import example_pipelines
from components.training.elastic_train_distributed import example_pipelines as distributed_examples
from elastic_launcher.config import JobConfig
from elastic_launcher.kfp import elastic_train, elastic_train_distributed
from elastic_launcher.lint import lint
from elastic_launcher.options import OPTIONS, ConfigError
from elastic_launcher.pipeline_step import left_behind, run_arguments
from pipelines.digits_elastic.run import in_order
from pipelines.digits_search.steps import divide, list_trials
from tests.support import histories
from tests.support.places import ROOT

GOLDEN = ROOT / "tests" / "golden"
PIPELINES = ("digits_elastic", "digits_keras", "digits_search", "gpt_lora", "plan_train_evaluate", "text_tuning")
KINDS = {
    "whole": "Integer",
    "whole_or_auto": "Integer",
    "integer": "Integer",
    "seconds": "Float",
    "switch": "Boolean",
    "pairs": "typing.Dict[str, str]",
    "words": "typing.List[str]",
    "text": "String",
    "choice": "String",
    "share": "String",
    "period": "String",
    "time": "String",
}
OF_NUMBERS = ("whole", "whole_or_auto", "seconds")
AS_ARTIFACTS = {"data", "output"}
ELSEWHERE = {
    "elastic_train": {"engine", "pod_template", "node_image", "gpu_resource", "pending_timeout", "min_wait"},
    "elastic_train_distributed": {"resize", "rdzv_backend"},
}
"""Options that mean nothing where nodes are processes of the step's pod, or where they are pods."""
OF_THE_STEP = {
    "elastic_train": {"data", "min_nodes", "max_nodes", "release", "on_failure", "report_uri"},
    "elastic_train_distributed": {
        "data", "min_nodes", "max_nodes", "on_failure", "report_uri", "shared_dir", "task_config",
    },
}  # fmt: skip
OWN_DEFAULTS = {"elastic_train": {}, "elastic_train_distributed": {"engine": "kubernetes", "nproc_per_node": 0}}
both = pytest.mark.parametrize("component", [elastic_train, elastic_train_distributed], ids=lambda one: one.name)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_compiled_pipeline_is_the_golden_one(name: str, tmp_path: Path) -> None:
    compiled = tmp_path / f"{name}.yaml"
    # in a process of its own: hera, once imported, has long texts written in another style
    command = [Path(sys.executable).with_name("kfp"), "dsl", "compile", "--py", f"pipelines/{name}/pipeline.py"]
    subprocess.run([*command, "--output", compiled], check=True, cwd=ROOT)
    assert compiled.read_bytes() == (GOLDEN / f"{name}.yaml").read_bytes(), "`make golden` writes it again"


def test_every_pipeline_has_a_golden_one_and_the_linter_finds_nothing() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(PIPELINES)
    assert {path.parent.name for path in (ROOT / "pipelines").glob("*/pipeline.py")} == set(PIPELINES)
    for name in PIPELINES:
        assert lint({name: (GOLDEN / f"{name}.yaml").read_text()}) == []


@pytest.mark.parametrize(
    "pipeline",
    [
        example_pipelines.script_in_image,
        example_pipelines.script_in_pipeline,
        distributed_examples.two_gpus_a_node,
        distributed_examples.reported,
    ],
)
def test_the_examples_compile(pipeline: Any, tmp_path: Path) -> None:
    compiler.Compiler().compile(pipeline, str(tmp_path / "example.yaml"))
    assert lint({"example.yaml": (tmp_path / "example.yaml").read_text()}) == []


PAGES = [ROOT / "docs" / "kubeflow.md", *sorted((ROOT / "components" / "training").glob("*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pipelines_on_the_pages_compile_as_they_stand(page: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    for block in blocks:
        names: dict[str, Any] = {"SCRIPT": "print()\n", "__name__": "page"}
        if "@dsl.pipeline" in block:
            with contextlib.chdir(tmp_path):
                exec(block, names)
        for name, pipeline in names.items():
            if isinstance(pipeline, GraphComponent):
                compiler.Compiler().compile(pipeline, str(tmp_path / f"{name}.yaml"))
                assert lint({name: (tmp_path / f"{name}.yaml").read_text()}) == []


def test_the_component_compiles_alone_and_needs_nothing_but_a_script(tmp_path: Path) -> None:
    compiler.Compiler().compile(elastic_train, str(tmp_path / "component.yaml"))
    assert all(given.optional for given in elastic_train.component_spec.inputs.values())


@both
def test_every_option_is_a_parameter_of_the_same_kind(component: Any) -> None:
    inputs, name = component.component_spec.inputs, component.python_func.__name__
    left_out = AS_ARTIFACTS | {"nodes"} | ELSEWHERE[name]
    options = {option.key: option for option in OPTIONS if option.key not in left_out}
    assert {key: inputs[key].type for key in options} == {key: KINDS[one.kind] for key, one in options.items()}
    assert set(inputs) == set(options) | OF_THE_STEP[name]


@both
def test_the_parameters_defaults_are_the_options_defaults(component: Any) -> None:
    name = component.python_func.__name__
    given = {key: one.default for key, one in component.component_spec.inputs.items() if key not in OF_THE_STEP[name]}
    assert {key: given[key] for key in OWN_DEFAULTS[name]} == OWN_DEFAULTS[name]
    given = {key: value for key, value in given.items() if key not in OWN_DEFAULTS[name]}
    given |= {
        option.key: given[option.key] or None
        for option in OPTIONS
        if option.kind in OF_NUMBERS and option.default is None and given.get(option.key) == 0
    }
    argv = run_arguments("train.py", "", [], given, Path("unused"))
    assert read(argv) == JobConfig.from_texts({}, ["train.py"])


def test_an_accelerator_limit_is_of_the_pod_or_of_each_node(tmp_path: Path) -> None:
    pod, node = (compiled(component, tmp_path) for component in (elastic_train, elastic_train_distributed))
    wanted = {"count": "2", "resourceCount": "2", "resourceType": "nvidia.com/gpu", "type": "nvidia.com/gpu"}
    for _, container in (pod, node):  # what is asked for is the same
        assert container["resources"]["accelerator"] == wanted
    assert "taskConfigPassthroughs" not in pod[0]
    assert {one["field"]: one.get("applyToTask", False) for one in node[0]["taskConfigPassthroughs"]} == {
        "RESOURCES": False,  # taken away from the step's pod, and handed to the nodes'
        "KUBERNETES_TOLERATIONS": False,
        "KUBERNETES_NODE_SELECTOR": False,
        "KUBERNETES_AFFINITY": False,
        "ENV": True,
        "KUBERNETES_VOLUMES": True,
    }
    kinds = node[0]["inputDefinitions"]["parameters"]
    assert [name for name, one in kinds.items() if one["parameterType"] == "TASK_CONFIG"] == ["task_config"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"nodes": "1:3"}, {"min_nodes": 1, "max_nodes": 3}),
        ({"global_batch_size": 256, "max_batch_per_gpu": None}, {"global_batch_size": 256}),
        ({"match": {"queue": "a", "pipeline": "b"}}, {"match": {"queue": "a", "pipeline": "b"}}),
        ({"hints": "h.json", "require_hints": True}, {"hints": "h.json", "require_hints": True}),
        ({"require_hints": False, "hints": "", "match": None}, {}),
        ({"project": "nlp", "priority": -5}, {"project": "nlp", "priority": -5}),
        ({"project": "", "priority": 0}, {}),
        ({"wait_for_quota": 2.5, "share": "1/2"}, {"wait_for_quota": 2.5, "share": (1, 2)}),
    ],
)
def test_the_command_line_reads_what_the_front_writes(options: dict[str, Any], expected: dict[str, Any]) -> None:
    argv = run_arguments("train.py", "", ["--lr", "0.1"], options, Path("unused"))
    assert read(argv) == JobConfig(script="train.py", arguments=("--lr", "0.1"), **expected)


def test_a_module_is_run_as_one() -> None:
    assert run_arguments("", "package.train", ["x"], {}, Path("unused")) == ["run", "--", "-m", "package.train", "x"]


def test_a_scripts_text_becomes_a_file(tmp_path: Path) -> None:
    copy = tmp_path / "new" / "job.py"
    assert run_arguments("import torch\nprint(1)\n", "", [], {}, copy) == ["run", "--", str(copy)]
    assert copy.read_text() == "import torch\nprint(1)\n"


def test_a_run_that_could_not_write_its_report_has_numbers_and_says_so(tmp_path: Path) -> None:
    story = histories.resized()
    histories.write(story.events, tmp_path)
    found = left_behind(tmp_path)
    assert (found.metrics["steps"], found.metrics["resizes_total"]) == (story.step, 2)
    assert found.metrics["test_accuracy"] == 0.9811
    assert "there is no report.html: No such file" in found.timeline
    assert "there is no report.md: No such file" in found.summary


@pytest.mark.parametrize(("script", "module"), [("", ""), ("train.py", "package.train")])
def test_script_and_module_exclude_each_other(script: str, module: str) -> None:
    with pytest.raises(ConfigError, match="either script or module"):
        run_arguments(script, module, [], {}, Path("unused"))


@pytest.mark.parametrize("rates", [["0.1"], ["0.1", "0.01"], ["a", "b", "c", "d", "e"]])
def test_each_trial_of_a_search_takes_its_own_part_however_many_there_are(rates: list[str], tmp_path: Path) -> None:
    trials = dsl.Artifact(uri=str(tmp_path / "trials"))
    list_trials.python_func(rates, trials)
    parts = [divide.python_func(rate, trials) for rate in rates]
    assert parts == [f"{number}/{len(rates)}" for number in range(1, len(rates) + 1)]


def test_two_trials_of_a_search_never_share_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give each one once"):
        list_trials.python_func(["0.1", "0.01", "0.1"], dsl.Artifact(uri=str(tmp_path / "trials")))


@pytest.mark.parametrize(
    ("seen", "right"),
    [([1, 3, 2], True), ([1, 2, 3, 2], True), ([1, 3], False), ([1, 2, 3], False), ([3, 2, 1], False)],
)
def test_make_run_wants_its_sizes_in_order(seen: list[int], right: bool) -> None:
    assert in_order([1, 3, 2], seen) is right


def compiled(component: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns component and container of a pipeline's one task, which asks for two GPUs."""

    @dsl.pipeline(name="two-gpus")
    def two_gpus():  # type: ignore[no-untyped-def]
        component(script="train.py").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)

    compiler.Compiler().compile(two_gpus, str(folder / "two.yaml"))
    document = next(yaml.safe_load_all((folder / "two.yaml").read_text()))
    (found,) = document["components"].values()
    return found, document["deploymentSpec"]["executors"][found["executorLabel"]]["container"]


def read(argv: list[str]) -> JobConfig:
    """Reads the arguments of a run as the command line does."""
    split = argv.index("--")
    texts: dict[str, Any] = {}
    flags = {option.flag: option for option in OPTIONS}
    for word in argv[1:split]:
        flag, equals, value = word.partition("=")
        option = flags[flag]
        if option.kind == "pairs":
            texts.setdefault(option.key, []).append(value)
        else:
            texts[option.key] = value if equals else True
    return JobConfig.from_texts(texts, argv[split + 1 :])
