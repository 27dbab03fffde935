"""Run by .ci/run at its end: what the tests and the pipeline started has ended, and the clone is as it was."""

import subprocess
from pathlib import Path

import psutil

from tests.cluster.machine.lan import BRIDGE
from tests.cluster.machine.places import Places, home

ROOT = Path(__file__).resolve().parents[2]


def describe(process: psutil.Process) -> str:
    """Returns everything that tells whose a process is."""
    try:
        surroundings = [process.cwd(), *(f"{name}={value}" for name, value in process.environ().items())]
        return "\n".join([*process.cmdline(), *surroundings])
    except psutil.Error:
        return ""


def test_no_process_is_left() -> None:
    ours = {process.pid for process in [psutil.Process(), *psutil.Process().parents()]}
    descriptions = {process.pid: describe(process) for process in psutil.process_iter() if process.pid not in ours}
    left = {
        pid: text.split("\n")[:3]
        for pid, text in descriptions.items()
        if str(ROOT) in text and ("ELASTIC_CONTROL=" in text or "elastic_launcher" in text)
    }
    assert not left


def test_no_cluster_is_left() -> None:
    state, programs = Places.default().state, home("XDG_CACHE_HOME", ".cache")
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(state) in command or str(programs) in command]
    assert not state.exists()
    assert not Path("/sys/class/net", BRIDGE).exists()


def test_no_file_is_left_in_the_clone() -> None:
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert status.stdout == ""
