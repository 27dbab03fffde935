"""Each component has the files and passes the checks of the repository for which it is made, and its YAML loads."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import components, dsl
from kfp.compiler import Compiler
from kfp.dsl.executor import Executor
from kfp.dsl.graph_component import GraphComponent

import elastic_launcher
from components.generated import NAMES as PIPELINES
from elastic_launcher import kfp as front
from elastic_launcher.lint.pipelines.pipeline import STEPS, UNCACHED
from tests.support.places import ROOT

TRAINING = ROOT / "components" / "training"
FILES = {"__init__.py", "component.py", "metadata.yaml", "README.md", "OWNERS", "component.yaml"}
ASSETS = (*(TRAINING / name for name in front.COMPONENTS), *(ROOT / "pipelines" / name for name in PIPELINES))
each = pytest.mark.parametrize("name", front.COMPONENTS)
each_asset = pytest.mark.parametrize("folder", ASSETS, ids=lambda folder: folder.name)


@each
def test_the_file_set_is_whole(name: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert {path.name for path in (TRAINING / name).iterdir() if path.is_file()} >= FILES
    assert f'__all__ = ["{name}"]' in (TRAINING / name / "__init__.py").read_text()


@pytest.mark.parametrize("name", PIPELINES)
def test_the_file_set_of_a_pipeline_is_whole(name: str) -> None:
    folder = ROOT / "pipelines" / name
    assert {path.name for path in folder.iterdir()} >= {
        "__init__.py",
        "pipeline.py",
        "metadata.yaml",
        "README.md",
        "OWNERS",
    }
    package = importlib.import_module(f"pipelines.{name}")
    assert package.__all__ == [name] and isinstance(getattr(package, name), GraphComponent)


@each_asset
def test_the_metadata_are_of_the_schema(folder: Path) -> None:
    found = yaml.safe_load((folder / "metadata.yaml").read_text())
    assert set(found) == {"name", "stability", "dependencies", "tags", "lastVerified"}
    assert found["name"] == folder.name
    assert found["stability"] in ("experimental", "alpha", "beta", "stable")
    assert "Pipelines" in [one["name"] for one in found["dependencies"]["kubeflow"]]
    assert all(set(one) == {"name", "version"} for one in found["dependencies"]["kubeflow"])
    versions = [one["version"] for one in found["dependencies"]["kubeflow"]]
    assert all(re.fullmatch(r"([<>=]=)?\d+\.\d+\.\d+", version) for version in versions)
    assert found["tags"] and all(isinstance(tag, str) for tag in found["tags"])
    assert isinstance(found["lastVerified"], datetime)


@each_asset
def test_somebody_owns_it(folder: Path) -> None:
    owners = yaml.safe_load((folder / "OWNERS").read_text())
    assert owners["approvers"] and owners["reviewers"]


@each
def test_artifacts_come_in_as_a_backend_sends_them(name: str, tmp_path: Path) -> None:
    """Without their type's title, which kfp.local does send."""
    step = getattr(front, name)
    given = {
        key: {"artifacts": [{"name": "46", "type": {"instanceSchema": ""}, "uri": f"minio://bucket/{key}"}]}
        for key, one in step.component_spec.inputs.items()
        if one.type == "system.Dataset@0.0.1"
    }
    message = {"inputs": {"artifacts": given}, "outputs": {"outputFile": str(tmp_path / "told.json")}}
    found = Executor(message, step.python_func).input_artifacts
    assert {key: (type(one), one.uri) for key, one in found.items()} == {
        key: (dsl.Dataset, f"minio://bucket/{key}") for key in given
    }


@each
def test_modules_import_nothing_but_the_standard_library_and_kfp(name: str) -> None:
    """When they are loaded: what a component, an example or a test needs besides, it imports when it is called."""
    for path in (TRAINING / name).rglob("*.py"):
        modules = {module.split(".")[0] for module in imported(ast.parse(path.read_text()))}
        assert modules <= {*sys.stdlib_module_names, "kfp", *(["pytest"] if path.parent.name == "tests" else [])}, path


@each
def test_the_docstring_names_every_parameter(name: str) -> None:
    spec = getattr(front, name).component_spec
    said = ast.get_docstring(function_of(name)) or ""
    for parameter in [*(spec.inputs or {}), *(key for key in spec.outputs or {} if key != "Output")]:
        assert re.search(rf"^ +{parameter}: \S", said, re.MULTILINE), parameter
    # a second line would end the row of the table that upstream's generator makes of it
    assert not re.search(r"^ {5,}\S", said.partition("Args:")[2], re.MULTILINE)


@each
def test_several_outputs_are_told_where_upstreams_generator_does_not_look(name: str) -> None:
    """Kfp reads them below Return: too; upstream's generator would put those below Returns: into one row of a table.

    So the part of the README that is written by hand has a row for each.
    """
    spec, readme = getattr(front, name).component_spec, (TRAINING / name / "README.md").read_text()
    scalars = {key: one for key, one in (spec.outputs or {}).items() if not one.type.startswith("system.")}
    if len(scalars) > 1:
        assert "Returns:\n" not in (ast.get_docstring(function_of(name)) or "")
        for key, one in scalars.items():
            assert re.search(rf"^\| `{key}` \| `\w+` \| {re.escape(one.description)} \|$", readme, re.MULTILINE), key


@each
def test_the_body_is_handed_over_whole(name: str) -> None:
    docstring, *body = function_of(name).body
    assert len(body) <= 3, "components have no logic of their own"
    assert isinstance(docstring, ast.Expr)


@each
def test_the_image_is_one_that_upstream_takes_and_this_version_is_installed(name: str) -> None:
    container = getattr(front, name).component_spec.implementation.container
    assert container.image == "python:3.11"
    assert f"=={elastic_launcher.__version__}'" in " ".join(container.command)


@each
def test_the_shipped_yaml_loads_with_the_same_inputs_and_outputs(name: str) -> None:
    loaded = components.load_component_from_file(str(TRAINING / name / "component.yaml")).component_spec
    ours = getattr(front, name).component_spec
    assert {key: kind(one) for key, one in (loaded.inputs or {}).items()} == {
        key: kind(one) for key, one in (ours.inputs or {}).items()
    }
    assert set(loaded.outputs or {}) == set(ours.outputs or {})


def test_yaml_and_readme_are_what_the_code_makes(tmp_path: Path) -> None:
    # in a process of its own: hera, once imported, has long texts written in another style
    subprocess.run([sys.executable, "-m", "components.generated", str(tmp_path)], check=True, cwd=ROOT)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2 * len(front.COMPONENTS) + len(PIPELINES) + 1
    for made in files:
        kept = ROOT / made.relative_to(tmp_path)
        assert made.read_text() == kept.read_text(), "`make golden` writes it again"


def test_the_code_passes_upstreams_own_formatter(tmp_path: Path) -> None:
    # outside the repository, where elastic_launcher is nobody's own package, as it is upstream
    shutil.copytree(
        TRAINING, tmp_path / "components" / "training", ignore=shutil.ignore_patterns("__pycache__", "*.md")
    )
    ruff = Path(sys.executable).with_name("ruff")
    checked = ["--isolated", "--line-length=120", "--target-version=py311"]
    rules = ["--select=E,F,W,I,D", "--ignore=D100,D104", "--config=lint.pydocstyle.convention='google'"]
    for command in (["check", *checked, *rules], ["format", "--check", *checked]):
        done = subprocess.run([ruff, *command, "components"], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout


@each
def test_tasks_are_made_with_caching_off(name: str, tmp_path: Path) -> None:
    task = only_task(name, tmp_path)
    assert task["cachingOptions"] == {}


def test_caching_can_be_asked_for(tmp_path: Path) -> None:
    assert only_task("elastic_plan", tmp_path, cached=True)["cachingOptions"] == {"enableCache": True}


def test_the_linter_knows_all_components() -> None:
    assert set(STEPS) | set(UNCACHED) | {"elastic_verdict", "elastic_classification"} == set(front.COMPONENTS)


def kind(given: Any) -> tuple[str, bool]:
    """Returns what an input takes, as a YAML can say it, and whether it may be left out."""
    return {"typing.Dict[str, str]": "Dict", "typing.List[str]": "List"}.get(given.type, given.type), given.optional


def only_task(name: str, folder: Path, cached: bool = False) -> dict[str, Any]:
    """Compiles a pipeline of one task of ours, and returns that."""

    @dsl.pipeline(name="one")
    def one():  # type: ignore[no-untyped-def]
        needed: dict[str, Any] = {"exit_code": 0} if name == "elastic_verdict" else {}
        if name == "elastic_classification":
            needed["metrics"] = dsl.importer(artifact_uri="s3://bucket/metrics", artifact_class=dsl.Metrics).output
        task = getattr(front, name)(**needed)
        if cached:
            task.set_caching_options(True)

    Compiler().compile(one, str(folder / "one.yaml"))
    document = next(yaml.safe_load_all((folder / "one.yaml").read_text()))
    return dict(document["root"]["dag"]["tasks"][name.replace("_", "-")])


def imported(node: ast.AST) -> Iterator[str]:
    """Gives the modules that are imported when a module is loaded, its own package's left out."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module
    for inner in ast.iter_child_nodes(node):
        yield from imported(inner)


def function_of(name: str) -> ast.FunctionDef:
    tree = ast.parse((TRAINING / name / "component.py").read_text())
    return next(one for one in tree.body if isinstance(one, ast.FunctionDef))
