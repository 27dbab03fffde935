"""A launcher that is asked to stop, and asked again, before anything is started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LAUNCHER = """
import signal
signal.signal({number}, signal.SIG_DFL)  # a launch within this pytest leaves it ignored
from elastic_launcher.cli import run
from elastic_launcher.cli.main import main

def ask(*given):
    signal.raise_signal({number})

run._run = ask
{again}
main()
"""
AGAIN = {
    "not again": "",
    "while what was begun is closed": """
def begun(*given):
    try:
        ask()
    finally:
        ask()
run._run = begun
""",
    "while it is said": "run._say = ask",
    "while Python ends": "import atexit; atexit.register(ask)",
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
@pytest.mark.parametrize("again", AGAIN)
def test_its_exit_code_tells_of_the_first(again: str, number: signal.Signals, code: int) -> None:
    text = LAUNCHER.format(number=int(number), again=AGAIN[again])
    ended = subprocess.run([sys.executable, "-c", text, "run", "train.py"], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert ("before anything was started" in ended.stderr) == (again in ("not again", "while Python ends"))
    assert "Traceback" not in ended.stderr
