"""The names of environment variables are in one module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import elastic_launcher
from elastic_launcher import variables

PACKAGE = Path(elastic_launcher.__file__).parent
NAMES = {value for name, value in vars(variables).items() if name.isupper() and name != "PREFIX"}


def spelled(module: Path) -> set[str]:
    """Returns the names of variables that a module's code, not its prose, has as literals."""
    texts = (one.value for one in ast.walk(ast.parse(module.read_text())) if isinstance(one, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"ELASTIC_[A-Z_]+", text)}


def test_no_other_module_spells_a_variable() -> None:
    exempt = {PACKAGE / "variables.py", PACKAGE / "agent" / "rank_exec.py"}
    assert {path: names for path in PACKAGE.rglob("*.py") if path not in exempt and (names := spelled(path))} == {}


def test_the_module_that_may_import_nothing_spells_them_as_the_others_do() -> None:
    names = spelled(PACKAGE / "agent" / "rank_exec.py")
    assert len(names) == 7
    assert names <= NAMES


def test_a_name_says_that_it_is_ours() -> None:
    assert {name for name in NAMES if not name.startswith(variables.PREFIX)} == set()
