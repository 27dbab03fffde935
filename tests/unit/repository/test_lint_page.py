"""docs/lint.md has a row for each rule, with its severity."""

from __future__ import annotations

import re

from elastic_launcher.lint import RULES
from tests.support.places import ROOT

DOCUMENT = ROOT / "docs" / "lint.md"


def test_each_rule_has_a_row_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(RULES)
    assert dict(rows) == RULES
