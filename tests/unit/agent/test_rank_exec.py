"""What stands between torchrun and a rank's script, where there is no room for what it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launcher.agent import rank_exec


@pytest.mark.parametrize("resize", ["in-process", "respawn"])
def test_a_full_disk_changes_no_exit_code(tmp_path: Path, resize: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "nodes/1-0.exit").mkdir(parents=True)  # nothing can take its place
    (tmp_path / "logs/1-0.log").symlink_to("/dev/full")
    (tmp_path / "nodes/1.lives").symlink_to("/dev/full")
    names = {"ELASTIC_NODE": "1", "ELASTIC_FIRST_MEMBER": "1", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    environment = {**os.environ, **names, "ELASTIC_WORK_DIR": str(tmp_path), "ELASTIC_RESIZE": resize}
    environment.pop("ELASTIC_AGENT_PID", None)
    command = [sys.executable, "-I", "-S", rank_exec.__file__, sys.executable, "-c", "raise SystemExit(7)"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 7, ended.stderr
