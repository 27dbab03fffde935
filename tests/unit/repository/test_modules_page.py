"""`docs/modules.md` has each module of the package once; rows of tables are short enough to read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.places import ROOT

PACKAGE = ROOT / "elastic_launcher"
LONGEST_ROW = 300
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md", *sorted(ROOT.glob("docs/*.md"))]


def test_the_page_has_each_module_once_and_none_that_is_gone() -> None:
    page = (ROOT / "docs/modules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+\.py)` \| .", page, re.MULTILINE)
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(rows) == sorted(modules)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_row_of_a_table_holds_a_paragraph(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if line.startswith("|") and len(line) > LONGEST_ROW]
    assert long == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "tests/README.md"])
def test_the_files_that_contributors_are_sent_to_are_there(page: str) -> None:
    named = set(re.findall(r"`([\w./]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    assert named
    there = [ROOT, PACKAGE, *(path for path in (ROOT / "tests").rglob("*") if path.is_dir())]
    assert {name for name in named if not any((folder / name).exists() for folder in there)} == set()
