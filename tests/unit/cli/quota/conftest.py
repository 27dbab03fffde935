"""What the tests of the quota commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.quota_command import DOCUMENT


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    path = tmp_path / "projects.yaml"
    path.write_text(DOCUMENT)
    return path
