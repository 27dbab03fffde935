"""Runs Python in a real terminal, and tells what then stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_terminal(code: str, *arguments: str, columns: int, term: str = "xterm-256color") -> str:
    """Returns all that a program wrote to its terminal; it must end well."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    hidden = ("NO_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**kept, "TERM": term, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while chunk := read(ours):
            written += chunk
    os.close(ours)
    assert process.returncode == 0, written.decode(errors="replace")
    return written.decode()


def read(terminal: int) -> bytes:
    """Returns what was written to a terminal; nothing once the writer has ended."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def screen(written: str) -> list[str]:
    """Returns the lines that stand on a terminal: follows line feeds, steps upwards and erased lines."""
    lines, row = [""], 0
    for part in re.findall(rf"{ANSI.pattern}|\n|\r|[^\x1b\n\r]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif ANSI.fullmatch(part) and part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif not ANSI.fullmatch(part) and part != "\r":
            lines[row] += part
    return [line.rstrip() for line in lines if line.strip()]
