"""Every test of several processes fails if it leaves one behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.launches import until

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup: launchers take over that a signal is ignored


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails a test after which a process lives whose work directory is in the test's folder."""
    yield

    def living() -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ELASTIC_WORK_DIR", "").startswith(f"{tmp_path}/"):
                    found.append(f"{process.pid} {process.cmdline()}")
            except psutil.Error:
                continue
        return found

    until(lambda: not living(), f"the test's processes end ({living()})", timeout=10)
