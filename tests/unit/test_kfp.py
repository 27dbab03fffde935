"""The KFP front: the arguments it makes, its agreement with the option table, the pipelines compiled to golden IR."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler

from components.training.elastic_train import example_pipelines
from elastic_launcher.config import JobConfig
from elastic_launcher.kfp import elastic_train, left_behind, run_arguments
from elastic_launcher.options import OPTIONS
from pipelines.digits_elastic.run import in_order
from tests.unit.report import jobs

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
KINDS = {
    "whole": "Integer",
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
AS_ARTIFACTS = {"data", "output"}


def defaults() -> dict[str, Any]:
    """Returns what the component gives to the launcher when nothing is said."""
    return {name: given.default for name, given in elastic_train.component_spec.inputs.items() if name != "data"}


def test_the_compiled_pipeline_is_the_golden_one(tmp_path: Path) -> None:
    compiled = tmp_path / "digits_elastic.yaml"
    # in a process of its own: hera, once imported, has long texts written in another style
    module = [sys.executable, "-m", "pipelines.digits_elastic.pipeline", str(compiled)]
    subprocess.run(module, check=True, cwd=GOLDEN.parents[1])
    assert compiled.read_bytes() == (GOLDEN / "digits_elastic.yaml").read_bytes(), "`make golden` writes it anew"


@pytest.mark.parametrize("pipeline", [example_pipelines.script_in_image, example_pipelines.script_in_pipeline])
def test_the_examples_compile(pipeline: Any, tmp_path: Path) -> None:
    compiler.Compiler().compile(pipeline, str(tmp_path / "example.yaml"))
    assert (tmp_path / "example.yaml").stat().st_size > 0


def test_the_component_compiles_alone_and_needs_nothing_but_a_script(tmp_path: Path) -> None:
    compiler.Compiler().compile(elastic_train, str(tmp_path / "component.yaml"))
    assert all(given.optional for given in elastic_train.component_spec.inputs.values())


def test_every_option_is_a_parameter_of_the_same_kind() -> None:
    inputs = elastic_train.component_spec.inputs
    options = {option.key: option for option in OPTIONS if option.key not in AS_ARTIFACTS | {"nodes"}}
    assert {name: inputs[name].type for name in options} == {key: KINDS[one.kind] for key, one in options.items()}
    others = {"data", "min_nodes", "max_nodes"}
    assert set(inputs) == set(options) | others


def test_the_parameters_defaults_are_the_options_defaults() -> None:
    given = defaults()
    nodes = f"{given.pop('min_nodes')}:{given.pop('max_nodes')}"
    given |= {
        name: given[name] or None for name in ("max_failures", "metrics_port", "global_batch_size", "max_batch_per_gpu")
    }
    argv = run_arguments("train.py", "", [], {**given, "nodes": nodes}, Path("unused"))
    assert read(argv) == JobConfig.from_texts({}, ["train.py"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"nodes": "1:3"}, {"min_nodes": 1, "max_nodes": 3}),
        ({"global_batch_size": 256, "max_batch_per_gpu": None}, {"global_batch_size": 256}),
        ({"match": {"queue": "a", "pipeline": "b"}}, {"match": {"queue": "a", "pipeline": "b"}}),
        ({"hints": "h.json", "require_hints": True}, {"hints": "h.json", "require_hints": True}),
        ({"require_hints": False, "hints": "", "match": None}, {}),
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
    assert run_arguments("import torch\n", "", [], {}, copy) == ["run", "--", str(copy)]
    assert copy.read_text() == "import torch\n"


def test_a_run_that_could_not_write_its_report_has_numbers_and_says_so(tmp_path: Path) -> None:
    story = jobs.resized()
    jobs.write(story.events, tmp_path)
    found = left_behind(tmp_path)
    assert (found.metrics["steps"], found.metrics["resizes_total"]) == (story.step, 2)
    assert found.metrics["test_accuracy"] == 0.9811
    assert "there is no report.html: No such file" in found.timeline
    assert "there is no report.md: No such file" in found.summary


@pytest.mark.parametrize(("script", "module"), [("", ""), ("train.py", "package.train")])
def test_script_and_module_exclude_each_other(script: str, module: str) -> None:
    with pytest.raises(ValueError, match="either script or module"):
        run_arguments(script, module, [], {}, Path("unused"))


@pytest.mark.parametrize(
    ("seen", "right"),
    [([1, 3, 2], True), ([1, 2, 3, 2], True), ([1, 3], False), ([1, 2, 3], False), ([3, 2, 1], False)],
)
def test_make_run_wants_its_sizes_in_order(seen: list[int], right: bool) -> None:
    assert in_order([1, 3, 2], seen) is right


def test_the_component_imports_nothing_but_kfp_at_the_top() -> None:
    source = Path(elastic_train.python_func.__code__.co_filename).read_text()
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert all(line.split()[1].split(".")[0] in {"typing", "kfp"} for line in top)


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
