"""What is made of code and committed beside it: a component's YAML, and what its README, or a pipeline's, repeats.

``python -m components.generated`` writes all of them anew; what follows the mark in a README is written by hand.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import Docstring, parse
from kfp.compiler import Compiler

from elastic_launcher.kfp import COMPONENTS

TRAINING = Path(__file__).with_name("training")
ROOT = TRAINING.parents[1]
PIPELINES = ROOT / "pipelines"
NAMES = ("digits_elastic", "digits_search", "plan_train_evaluate", "text_tuning")
"""The pipelines."""
CACHED = "cachingOptions:\n          enableCache: true\n"
UNCACHED = "cachingOptions: {}\n"
"""As the compiler writes it of a task with caching off."""
MARK = "<!-- custom-content -->"


def component(name: str) -> Any:
    """Returns a component, or a pipeline, by its name, as upstream would import it."""
    module = f"pipelines.{name}.pipeline" if name in NAMES else f"components.training.{name}.component"
    return getattr(importlib.import_module(module), name)


def folder_of(name: str) -> Path:
    """Returns where a component or a pipeline is."""
    return (PIPELINES if name in NAMES else TRAINING) / name


def write_yaml(name: str, path: Path) -> None:
    """Compiles a component; run as a pipeline of its own, it is not answered from the cache either."""
    Compiler().compile(component(name), str(path))
    path.write_text(path.read_text().replace(CACHED, UNCACHED))


def readme(name: str, custom: str) -> str:
    """Returns the README of a component or a pipeline.

    Args:
        name: Which.
        custom: What is written by hand, from the mark on.
    """
    function = _function(name)
    told = parse(ast.get_docstring(function) or "")
    metadata = yaml.safe_load((folder_of(name) / "metadata.yaml").read_text())
    kind = "pipeline" if name in NAMES else "component"
    parts = [
        f"# {name.replace('_', ' ').title()}",
        f"> **Stability: {metadata['stability']}** — this {kind} is not yet stable and may change.",
        "## Overview",
        _paragraphs(told),
        *_tables(name, function, told),
        _metadata(name, metadata),
    ]
    return "\n\n".join(parts) + "\n\n" + custom


def _function(name: str) -> ast.FunctionDef:
    tree = ast.parse((folder_of(name) / ("pipeline.py" if name in NAMES else "component.py")).read_text())
    return next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _paragraphs(told: Docstring) -> str:
    long = [" ".join(part.split()) for part in (told.long_description or "").split("\n\n")]
    return "\n\n".join(part for part in (told.short_description, *long) if part)


def _tables(name: str, function: ast.FunctionDef, told: Docstring) -> list[str]:
    spec = component(name).component_spec
    said = {one.arg_name: " ".join((one.description or "").split()) for one in told.params}
    kinds = {one.arg: ast.unparse(one.annotation).replace("|", "\\|") for one in function.args.args if one.annotation}
    inputs = []
    for key, given in (spec.inputs or {}).items():
        if kinds[key] == "dsl.TaskConfig":
            continue  # nobody gives it
        default = f"`{_shown(given.default)}`" if given.optional else "required"
        inputs.append(f"| `{key}` | `{kinds[key]}` | {default} | {said[key]} |")
    head = "| Parameter | Type | Default | Description |\n|-----------|------|---------|-------------|\n"
    found = ["## Inputs", head + "\n".join(inputs)]
    outputs = [f"| `{key}` | `{_artifact(kinds[key])}` | {said[key]} |" for key in spec.outputs or {} if key in kinds]
    returned = " ".join(((told.returns and told.returns.description) or "").split("\n"))
    scalars = _scalars(function, returned)
    if outputs or scalars:
        head = "| Name | Type | Description |\n|------|------|-------------|\n"
        found += ["## Outputs", head + "\n".join([*outputs, *scalars])]
    return found


def _artifact(kind: str) -> str:
    return kind.removeprefix("Output[").removesuffix("]")


def _scalars(function: ast.FunctionDef, returned: str) -> list[str]:
    """Returns the rows of a component's return values."""
    match function.returns:
        case None:
            return []
        case ast.Call(args=[_, ast.List(elts=pairs)]):
            text = ast.get_docstring(function) or ""
            after = text.partition("Returns:\n")[2]
            said = dict(re.findall(r"^\s+(\w+): (.*)$", after, re.MULTILINE))
            fields = [(one.elts[0].value, ast.unparse(one.elts[1])) for one in pairs]  # type: ignore[attr-defined]
            return [f"| `{key}` | `{kind}` | {said[key]} |" for key, kind in fields]
        case other:
            return [f"| `Output` | `{ast.unparse(other)}` | {returned.strip()} |"]


def _shown(value: Any) -> str:
    return '""' if value == "" else str(value)


def _metadata(name: str, metadata: dict[str, Any]) -> str:
    owners = yaml.safe_load((folder_of(name) / "OWNERS").read_text())
    kubeflow = metadata["dependencies"]["kubeflow"]
    lines = [
        "## Metadata\n",
        f"- **Name**: {metadata['name']}",
        f"- **Stability**: {metadata['stability']}",
        "- **Dependencies**:",
        "  - Kubeflow:",
        *(f"    - Name: {one['name']}, Version: {one['version']}" for one in kubeflow),
        "- **Tags**:",
        *(f"  - {tag}" for tag in metadata["tags"]),
        f"- **Last Verified**: {metadata['lastVerified']}",
        "- **Owners**:",
        "  - Approvers:",
        *(f"    - {one}" for one in owners["approvers"]),
        "  - Reviewers:",
        *(f"    - {one}" for one in owners["reviewers"]),
    ]
    return "\n".join(lines)


def custom_of(text: str) -> str:
    """Returns the part of a README that is written by hand; the mark alone where there is none."""
    return MARK + text.partition(MARK)[2] if MARK in text else f"{MARK}\n"


def main(folder: Path) -> None:
    """Writes YAML and README of each component, and the README of each pipeline, where they are below a folder."""
    for name in (*COMPONENTS, *NAMES):
        own = folder_of(name) / "README.md"
        target = folder / own.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in COMPONENTS:
            write_yaml(name, target.with_name("component.yaml"))
        text = readme(name, custom_of(own.read_text() if own.exists() else ""))
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
