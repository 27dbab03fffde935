"""A reader of the launcher's output who is slow, stands still, or goes away holds up nothing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

import pytest

from elastic_launcher.launcher import output_pump
from tests.support import terminals

PATIENCE = 60.0
HEAD = """
import sys
from elastic_launcher.launcher import output_pump
with output_pump.unblocked():
"""


@contextlib.contextmanager
def program(code: str, **streams: int) -> Iterator[subprocess.Popen[str]]:
    """Runs statements in whose output is unblocked."""
    text = HEAD + "\n".join(f"    {line}" for line in code.strip().splitlines())
    with subprocess.Popen([sys.executable, "-c", text], text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def read(stream: IO[str] | None) -> list[str]:
    assert stream is not None
    return stream.read().splitlines()


def test_nothing_is_lost_of_what_is_read() -> None:
    code = """
for number in range(100_000):
    print("line", number)
print("and no end of line", end="")
"""
    with program(code, stdout=subprocess.PIPE) as process:
        assert read(process.stdout) == [*(f"line {number}" for number in range(100_000)), "and no end of line"]
        assert process.wait(PATIENCE) == 0


def test_nothing_is_lost_where_writing_does_not_block() -> None:
    code = """
import os
os.set_blocking(1, False)
for number in range(100_000):
    print("line", number)
print("printed", file=sys.stderr)
"""
    with program(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "printed\n"  # more than the pipe holds
        assert read(process.stdout) == [f"line {number}" for number in range(100_000)]
        assert process.wait(PATIENCE) == 0


def test_what_goes_to_one_reader_keeps_its_order() -> None:
    code = """
for number in range(1000):
    print(number, file=sys.stderr if number % 2 else sys.stdout)
"""
    with program(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert read(process.stdout) == [str(number) for number in range(1000)]


def test_a_reader_that_stands_still_gets_the_newest_lines_and_is_told_how_many_it_did_not() -> None:
    size = 1000
    written = 2 * output_pump.MOST_BYTES // size
    code = f"""
for number in range({written}):
    print(f"{{number:{size - 1}}}")
print("all is written", file=sys.stderr, flush=True)
"""
    with program(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stderr.readline() == "all is written\n"
        lines = read(process.stdout)
    (told,) = (place for place, line in enumerate(lines) if "left out" in line)
    match = re.match(
        r"elastic-launcher: ([\d,]+) lines are left out here, since .* \(logs/, events.jsonl\)", lines[told]
    )
    assert match is not None
    missing = int(match[1].replace(",", ""))
    numbers = [int(line) for line in lines[:told] + lines[told + 1 :]]
    assert numbers == [*range(told), *range(told + missing, written)]
    assert told > 0 and missing > 0


def test_the_end_waits_for_no_reader_that_stands_still_and_the_other_stream_is_written() -> None:
    code = """
output_pump.STANDS_SECONDS = 1.0
print("x" * 1_000_000)
print("how it ended", file=sys.stderr)
"""
    with program(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert read(process.stderr) == ["how it ended"]
        assert process.wait(PATIENCE) == 0


def test_the_end_waits_for_a_slow_reader_as_long_as_it_reads() -> None:
    piece, pieces, stands = 1 << 16, 40, 1.0
    code = f"""
output_pump.STANDS_SECONDS = {stands}
for _ in range({pieces}):
    print("x" * {piece - 1})
"""
    began = time.monotonic()
    with program(code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(pieces):
            time.sleep(2 * stands / pieces)  # what makes it slow
            assert process.stdout.read(piece) == "x" * (piece - 1) + "\n"
        assert process.wait(PATIENCE) == 0
    assert time.monotonic() - began > 2 * stands


def test_a_reader_that_goes_away_and_a_full_disk_end_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = """
import time
for number in range(3):
    print("line", number)
    print("line", number, file=sys.stderr)
    output_pump.drain()
"""
    full = os.open("/dev/full", os.O_WRONLY)
    with program(code, stdout=writing, stderr=full) as process:
        os.close(writing)
        os.close(full)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("closed", ["1", "12"])
def test_a_stream_that_was_closed_from_the_start_stays_so(closed: str) -> None:
    shut = " ".join(f"{number}>&-" for number in closed)
    code = HEAD + "    print('out')\n    print('err', file=sys.stderr)\n"
    shell = f'"$0" -c "$1" {shut}'
    result = subprocess.run(["sh", "-c", shell, sys.executable, code], capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0
    assert result.stdout == ("" if "1" in closed else "out\n")
    assert result.stderr == ("" if "2" in closed else "err\n")


def test_a_terminal_that_stands_still_holds_up_nothing_and_gets_every_line_in_the_end() -> None:
    code = """

import os
from elastic_launcher.launcher.display import Display
from elastic_launcher.config import JobConfig
from tests.support import histories
display = Display(JobConfig(script="train.py", name="bert"))
display.start()
for event in histories.resized().events:
    display.feed(event)
for number in range(300):
    display.script_line(0, f"line {number}")
os.write(int(sys.argv[1]), b"done")
display.stop()
"""
    text = HEAD + "\n".join(f"    {line}" for line in code.strip().splitlines())
    reading, writing = os.pipe()
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", text, str(writing)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, pass_fds=[writing]) as process:
        os.close(theirs)
        os.close(writing)
        through = os.read(reading, 4)  # before anybody reads
        written = b""
        while chunk := terminals.read(ours):
            written += chunk
    os.close(ours)
    os.close(reading)
    assert (through, process.returncode) == (b"done", 0)
    lines = re.findall(r"\[rank 0\] (line \d+)", terminals.ANSI.sub("", written.decode()))
    assert lines == [f"line {number}" for number in range(300)]
    assert "left out" not in written.decode()
