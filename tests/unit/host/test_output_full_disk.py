"""What the library and the script write into their rank's log ends nothing where the disk is full."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.workdir import claim

MARK = """
from typing import Any
from elastic_launcher.torch.membership.membership import Formation, Membership, mark_log
group: Any = type("Group", (), {"rank": 0, "world_size": 2})
mark_log(Membership(1, Formation(1, 1, "start", (1, 2)), group, 2))
"""
LEAVE = """
from elastic_launcher.torch.membership.connection import leave
leave("the coordinator has given it up", 7)
"""
PRINT = """
import sys
from elastic_launcher.host.output import spare_output
spare_output()
print("loss", 0.5)
print("loss", 0.4, flush=True)
print("a warning", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("code", "after"),
    [
        pytest.param(MARK, 3, id="a mark"),
        pytest.param(LEAVE, 7, id="a farewell", marks=pytest.mark.thorough),
        pytest.param(PRINT, 3, id="a print of the script's"),
    ],
)
def test_a_full_disk_ends_nothing_and_keeps_nobody(code: str, after: int) -> None:
    text = f"import os\n{code}\nos._exit(3)"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "-c", text], stdout=full, stderr=full)
    assert ended.returncode == after


def test_what_there_is_room_for_is_printed_in_order() -> None:
    text = f"print('before')\n{PRINT}\nprint('\u00fc', end='')"
    ended = subprocess.run([sys.executable, "-X", "utf8", "-c", text], capture_output=True)
    assert (ended.returncode, ended.stdout.decode(), ended.stderr) == (
        0,
        "before\nloss 0.5\nloss 0.4\n\u00fc",
        b"a warning\n",
    )


def test_what_a_pipe_takes_a_part_of_is_printed_to_its_end() -> None:
    """A signal comes while its reader stands still."""
    text = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n{PRINT}\nprint('x' * 200_000)"
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", text], stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        size = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
        held = array.array("i", [0])
        with open(reader, "rb") as output:
            while held[0] < size - 4096:  # pages of it may hold one line each
                assert process.poll() is None, "it has ended before the pipe was full"
                fcntl.ioctl(reader, termios.FIONREAD, held)
            process.send_signal(signal.SIGTERM)
            assert output.read().endswith(b"\n" + b"x" * 200_000 + b"\n")


def test_an_agent_whose_log_takes_no_more_still_says_by_its_exit_code_how_it_ended(tmp_path: Path) -> None:
    names = {"ELASTIC_NODE": "1", "ELASTIC_FIRST_MEMBER": "1", "ELASTIC_CONTROL": "of no coordinator"}
    with claim(JobConfig(script="train.py", work_dir="job"), tmp_path) as work_dir, open("/dev/full", "wb") as full:
        names["ELASTIC_WORK_DIR"] = str(work_dir.path)
        agent = [sys.executable, "-m", "elastic_launcher.agent"]
        ended = subprocess.run(agent, env={**os.environ, **names}, stdout=full, stderr=full)
    assert ended.returncode == ExitCode.LAUNCHER_FAILED


def test_an_agent_that_can_not_read_what_its_job_is_says_so(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"id": "torn')
    names = {
        "ELASTIC_NODE": "3",
        "ELASTIC_FIRST_MEMBER": "1",
        "ELASTIC_CONTROL": "x",
        "ELASTIC_WORK_DIR": str(tmp_path),
    }
    agent = [sys.executable, "-m", "elastic_launcher.agent"]
    ended = subprocess.run(agent, env={**os.environ, **names}, capture_output=True, text=True)
    said = f"agent of node 3: {tmp_path} is not the work directory of a job: it has no job.json that can be read\n"
    assert (ended.returncode, ended.stderr) == (ExitCode.LAUNCHER_FAILED, said)


def test_a_reader_who_has_gone_is_still_told_to_the_script() -> None:
    """Nothing but a disk's refusal is kept from it."""
    text = f"{PRINT}\nprint('more')"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", text], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert ended.returncode != 0 and "BrokenPipeError" in ended.stderr


def test_a_stream_of_the_scripts_own_stays() -> None:
    text = f"import io, sys\nsys.stdout = mine = io.StringIO()\n{PRINT}\nsys.exit(mine.getvalue())"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert ended.stderr == "a warning\nloss 0.5\nloss 0.4\n\n"
