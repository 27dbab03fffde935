"""Generates the files committed beside the code: a component's YAML, and the repeated parts of READMEs.

``python -m components.generated`` rewrites all of them; what follows the mark in a README is written by hand. What
comes before it is, to the letter, what the generator of kubeflow/pipelines-components writes: that is checked there.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import parse
from kfp.compiler import Compiler

from elastic_launcher.kfp import COMPONENTS

TRAINING = Path(__file__).with_name("training")
ROOT = TRAINING.parents[1]
PIPELINES = ROOT / "pipelines"
NAMES = ("digits_elastic", "digits_keras", "digits_search", "gpt_lora", "plan_train_evaluate", "text_tuning")
"""The pipelines."""
CACHED = "cachingOptions:\n          enableCache: true\n"
UNCACHED = "cachingOptions: {}\n"
"""As the compiler writes it of a task with caching off."""
MARK = "<!-- custom-content -->"
STABILITY = "> ⚠️ **Stability: {}** — This asset is not yet stable and may change."
INPUTS = "| Parameter | Type | Default | Description |\n|-----------|------|---------|-------------|\n"
OUTPUTS = "| Name | Type | Description |\n|------|------|-------------|\n"


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


def readme(name: str, custom: str = "") -> str:
    """Returns the README of a component or a pipeline; ``custom`` is what is written by hand, from the mark on."""
    folder, function = folder_of(name), _function(name)
    told = parse(ast.get_docstring(function) or "")
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
    owners = yaml.safe_load((folder / "OWNERS").read_text())
    parts = [f"# {_title(metadata['name'])} ✨"]
    if metadata["stability"] != "stable":
        parts.append(STABILITY.format(metadata["stability"]))
    parts += ["## Overview 🧾", _overview(name)]
    said = {one.arg_name: one.description for one in told.params}
    if inputs := [_input(one, default, said.get(one.arg) or "") for one, default in _parameters(function)]:
        parts += ["## Inputs 📥", INPUTS + "\n".join(inputs)]
    if function.returns:
        returned = (told.returns and told.returns.description) or ""
        parts += ["## Outputs 📤", f"{OUTPUTS}| Output | `{ast.unparse(function.returns)}` | {returned} |"]
    if (examples := folder / "example_pipelines.py").exists():
        parts += ["## Usage Examples 🧪", f"```python\n{examples.read_text()}\n```"]
    rows = [f"- **{_title(key)}**:{_listed(value)}" for key, value in {**metadata, "owners": owners}.items()]
    parts += ["## Metadata 🗂️", "\n".join(rows)]
    return "\n\n".join(parts) + "\n" + (f"\n\n{custom}" if custom else "")


def index() -> str:
    """Returns the README of the components' folder, which lists them."""
    rows = [f"- [{_title(name)}](./{name}/README.md): {_overview(name).splitlines()[0]}" for name in sorted(COMPONENTS)]
    told = "This directory contains components in the **Training** category:"
    return "\n\n".join(["# Training Components", told, "\n".join(rows)]) + "\n"


def _function(name: str) -> ast.FunctionDef:
    tree = ast.parse((folder_of(name) / ("pipeline.py" if name in NAMES else "component.py")).read_text())
    return next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _title(key: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])|_", " ", key).title()


def _overview(name: str) -> str:
    """Returns a docstring's text without its sections, each paragraph filled again."""
    told = parse(ast.get_docstring(_function(name)) or "")
    paragraphs = [told.short_description or "", *(told.long_description or "").split("\n\n")]
    return "\n\n".join(_filled(one) for one in paragraphs if one)


def _filled(paragraph: str) -> str:
    words = " ".join(paragraph.split())
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def _parameters(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """Returns all parameters, artifacts to write among them, each with its default."""
    given = function.args
    required = [None] * (len(given.args) - len(given.defaults))
    return list(zip([*given.args, *given.kwonlyargs], [*required, *given.defaults, *given.kw_defaults], strict=True))


def _input(parameter: ast.arg, default: ast.expr | None, said: str) -> str:
    kind = ast.unparse(parameter.annotation) if parameter.annotation else "Any"
    match default:
        case None:  # one that must be given looks like one that may be None
            shown = "None"
        case ast.Constant(value=value):
            shown = '""' if value == "" else str(value)
        case other:
            shown = ast.unparse(other)
    return f"| `{parameter.arg}` | `{kind}` | `{shown}` | {said} |"


def _listed(value: Any, depth: int = 1) -> str:
    """Returns what follows a key's colon: a text, or rows of a list one level further in."""
    match value:
        case dict():
            rows = [f"{_title(key)}:{_listed(one, depth + 1)}" for key, one in value.items()]
        case list():
            rows = [_pairs(one) if isinstance(one, dict) else str(one) for one in value]
        case _:
            return f" {value}"
    return "".join(f"\n{'  ' * depth}- {row}" for row in rows)


def _pairs(entry: dict[str, Any]) -> str:
    return ", ".join(f"{_title(key)}: {value}" for key, value in entry.items())


def custom_of(text: str) -> str:
    """Returns the part of a README that is written by hand, from the mark on."""
    return MARK + text.partition(MARK)[2] if MARK in text else ""


def main(folder: Path) -> None:
    """Writes components' YAML, READMEs and their index, and pipelines' READMEs, where they are below a folder."""
    for name in (*COMPONENTS, *NAMES):
        own = folder_of(name) / "README.md"
        target = folder / own.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in COMPONENTS:
            write_yaml(name, target.with_name("component.yaml"))
        text = readme(name, custom_of(own.read_text() if own.exists() else ""))
        target.write_text(text, encoding="utf-8")
    (folder / TRAINING.relative_to(ROOT) / "README.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
