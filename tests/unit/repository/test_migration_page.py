"""The diffs of the documents are those of the scripts, which ``tests/local/test_migration.py`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.migration.__main__ import BLOCK, HERE, PAGES, page


def test_each_script_is_shown_once() -> None:
    shown = [name for path in PAGES for name in BLOCK.findall(path.read_text())]
    assert sorted(shown) == sorted(path.name for path in HERE.glob("from_*.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_diffs_are_those_of_the_scripts(path: Path) -> None:
    assert page(path.read_text()) == path.read_text(), "`make golden` writes them again"
