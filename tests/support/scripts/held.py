"""Runs a script as it is, but for one thing: before its Nth optimizer step the first member waits for a file.

Usage: ``held.py SCRIPT N...``; the files are ``go-N`` in the current directory. So a test changes the size of a
training that would be over before another process is there.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

_, SCRIPT, *NUMBERS = sys.argv
POLL_SECONDS = 0.02
steps = itertools.count()


def wait(*_: Any) -> None:
    """Waits where it is to be held."""
    number = str(next(steps))
    while number in NUMBERS and not Path(f"go-{number}").exists():
        time.sleep(POLL_SECONDS)


if os.environ["ELASTIC_MEMBER"] == "1":
    register_optimizer_step_pre_hook(wait)
sys.argv = [SCRIPT]
runpy.run_path(SCRIPT, run_name="__main__")
