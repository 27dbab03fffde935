"""Reads what an ended process has left on disk: its exit, and the last lines of its script."""

from __future__ import annotations

import json
import os
from pathlib import Path

from elastic_launcher.control.messages import FAREWELLS
from elastic_launcher.coordinator.model.actions import Finish
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.workdir import Layout

LINES = 20  # of a log that are shown with the message
_BYTES = 1 << 16  # of a log's end that are read for them
TRACEBACK = "Traceback (most recent call last):"
_TRACEBACK_LINES = 500  # in which one is looked for
_MARK = "::elastic "  # begins a line that marks a generation, for programs


def read_exit(path: Path, member: int) -> Exit | None:
    """Returns how a member's process ended, from the file that its parent or the coordinator wrote; None if there is
    none, or it is about a member that was there before.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.get("member", member) == member
        return Exit(content.get("exit_code"), content.get("signal")) if own else None
    except (OSError, ValueError, AttributeError):
        return None


def last_lines(path: Path, lines: int = LINES) -> list[str]:
    """Returns the last lines of a log; none if it can't be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    # of a progress bar's line, what a terminal would show at its end
    found = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")]
    return [line for line in found if not line.startswith((_MARK, *FAREWELLS))][-lines:]


def last_exception(path: Path) -> str:
    """Returns the line that names the last exception whose traceback is among a log's last lines; "" if none is."""
    found = last_lines(path, _TRACEBACK_LINES)
    heads = [number for number, line in enumerate(found) if line.startswith(TRACEBACK)]
    after = found[heads[-1] + 1 :] if heads else []
    return next((line.strip() for line in after if line.strip() and not line.startswith(" ")), "")


def last_message(finish: Finish, layout: Layout) -> str:
    """Returns the message of a job's end, with the last lines of the rank that it is about."""
    if finish.log_of is None:
        return finish.message
    log = layout.rank_log(*finish.log_of)
    error = last_exception(log) if finish.uncaught else ""
    message = f"{finish.message}; its last exception: {error}" if error else finish.message
    return with_last_lines(message, log, finish.traceback)


def with_last_lines(message: str, path: Path, traceback: str = "") -> str:
    """Returns a message followed by the last lines of a log, and by the traceback where the log does not show it."""
    found = last_lines(path)
    lines = [line for line in found if line.strip()]
    last = traceback.strip().splitlines()
    if last and last[-1].strip() not in (line.strip() for line in lines):
        lines += last[-LINES:]
    if not lines:
        return message
    return "\n".join([f"{message}", f"Last lines of {path}:", *(f"  {line}" for line in lines)])
