"""The watcher of a launch's processes takes no exit status from the test that watches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.launches import subreaper
from tests.support.leftovers import Stage


def test_a_child_of_the_test_keeps_its_exit_status_and_an_orphan_is_reaped(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    orphan = "import os; os.fork() or os.setsid() or print(os.getpid())"
    with subreaper(), subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        parent = subprocess.run([sys.executable, "-c", orphan], capture_output=True, text=True, check=True)
        orphaned = int(parent.stdout)
        os.waitid(os.P_PID, orphaned, os.WEXITED | os.WNOWAIT)
        assert stage.left() == []
        assert not psutil.pid_exists(orphaned)
        assert child.wait() == 7
