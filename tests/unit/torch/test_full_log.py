"""What the library writes into its rank's log ends nothing where the disk is full."""

from __future__ import annotations

import subprocess
import sys

import pytest

MARK = """
from typing import Any
from elastic_launcher.torch.place import Formation, Place, mark_log
group: Any = type("Group", (), {"rank": 0, "world_size": 2})
mark_log(Place(1, Formation(1, 1, "start", (1, 2)), group, 2))
"""
LEAVE = """
from elastic_launcher.torch.member import leave
leave("the coordinator has given it up", 7)
"""


@pytest.mark.parametrize(("code", "after"), [(MARK, 3), (LEAVE, 7)], ids=["a mark", "a farewell"])
def test_a_full_disk_ends_nothing_and_keeps_nobody(code: str, after: int) -> None:
    text = f"import os\n{code}\nos._exit(3)"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "-c", text], stdout=full, stderr=full)
    assert ended.returncode == after
