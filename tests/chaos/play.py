"""Plays the schedule of one seed, and judges the job that went through it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.conduct import SCRIPT, Conductor
from tests.chaos.judge import judge
from tests.chaos.schedule import draw
from tests.soak.stage import Stage

MOST_WORDS = 400  # characters of a failure in its line; the files say the rest


@dataclass(frozen=True)
class Outcome:
    """How a schedule went.

    Attributes:
        line: The schedule and its outcome.
        kept: Where its files are, if it failed.
    """

    line: str
    kept: Path | None


def play(seed: int, say: Callable[[str], None]) -> Outcome:
    """Plays the schedule of a seed.

    Args:
        seed: From 1 on.
        say: Takes a line about each act.
    """
    schedule = draw(seed)
    root = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    began = time.monotonic()
    problem, steps = "", 0
    try:
        conductor = Conductor(Stage(root, script=SCRIPT), schedule, say)
        code = conductor.play()
        assert code == 0, f"exit code {code} ({(conductor.launcher.stderr.splitlines() or [''])[-1]})"
        assert not conductor.left, f"left: {conductor.left}"
        steps = judge(conductor.folder, conductor.events)
    except AssertionError as error:
        problem = str(error)[:MOST_WORDS] or "an assertion without words"
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    verdict = f"FAILED: {problem}" if problem else f"{steps} steps as in one process"
    line = f"{seed:03d} {schedule}: {time.monotonic() - began:.1f} s, {verdict}"
    if not problem:
        shutil.rmtree(root, ignore_errors=True)
    return Outcome(" ".join(line.split()), root if problem else None)
