"""Plays a schedule, and judges the job that went through it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.conduct import Conductor
from tests.chaos.judge import judge
from tests.chaos.lead import SCRIPT
from tests.chaos.levels import Levels
from tests.chaos.schedule import Schedule
from tests.support.leftovers import Stage

MOST_WORDS = 400  # characters of a failure in its line; the files say the rest


@dataclass(frozen=True)
class Outcome:
    """How a schedule went.

    Attributes:
        words: What was found, in a line.
        kept: Where the job's files are, if it failed.
    """

    words: str
    kept: Path | None


def outcome_of(name: str, lead: Callable[[Path, list[str]], None]) -> Outcome:
    """Has a job go through its schedule in a folder of its own, which is kept if it failed.

    Args:
        name: What the folder's name begins with.
        lead: Leads and judges the job in that folder: adds what it finds, and raises AssertionError for what is wrong.
    """
    root = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    began = time.monotonic()
    found: list[str] = []
    kept = None
    try:
        lead(root, found)
    except AssertionError as error:
        found.insert(0, f"FAILED: {str(error)[:MOST_WORDS] or 'an assertion without words'}")
        kept = root
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    if kept is None:
        shutil.rmtree(root, ignore_errors=True)
    words = f"{time.monotonic() - began:.1f} s, {'; '.join(found)}"
    return Outcome(" ".join(words.split()), kept)


def play(schedule: Schedule, say: Callable[[str], None], levels: Levels | None = None) -> Outcome:
    """Plays a schedule.

    Args:
        schedule: What is to happen.
        say: Takes a line about each act.
        levels: Looks at what the job holds meanwhile.
    """

    def lead(root: Path, found: list[str]) -> None:
        conductor = Conductor(Stage(root, script=SCRIPT), schedule, say, levels.look if levels else lambda act: None)
        if levels is not None:
            levels.conductor = conductor
        code = conductor.play()
        assert code == 0, f"exit code {code} ({(conductor.launcher.stderr.splitlines() or [''])[-1]})"
        assert not conductor.left, f"left: {conductor.left}"
        found.append(f"{judge(conductor.folder, conductor.events, schedule)} steps as in one process")
        if levels is not None:
            pauses = [event["pause_seconds"] for event in conductor.events if event.kind == "generation_formed"]
            held = levels.judge(pauses[1:])
            found += [f"{len(pauses) - 1} resizes", *map(str, held)]
            grown = [level.name for level in held if level.last > level.most]
            assert not grown, "; ".join(grown)

    return outcome_of(f"chaos-{schedule.seed}", lead)
