"""Finds the processes of a node, and kills all of them.

torchrun gives each rank a session of its own, and a script may start what it likes, so a node's processes are found in
two ways: as descendants of its agent, and by the environment that they inherited, which holds when a parent in between
is gone.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from elastic_launcher import variables

if TYPE_CHECKING:
    import psutil

GONE_PAUSE = 0.02
"""Seconds between looks for what is left: a killed process is gone within milliseconds."""


def find(
    work_dir: str, node: int | None = None, root: int | None = None, spare: Collection[int] = ()
) -> list[psutil.Process]:
    """Returns the living processes of a node, or of a whole job.

    Args:
        work_dir: The job's work directory, as ``ELASTIC_WORK_DIR`` has it.
        node: The node's number; None for all nodes of the job.
        root: A process whose descendants count too, and itself.
        spare: Process ids to leave out.
    """
    import psutil

    found: dict[int, psutil.Process] = {}
    if root is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(root)
            found = {process.pid: process for process in (top, *top.children(recursive=True))}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:  # gone meanwhile, a zombie, or another user's
            continue
        if environment.get(variables.WORK_DIR) == work_dir and (
            node is None or environment.get(variables.NODE) == str(node)
        ):
            found.setdefault(process.pid, process)
    return [process for process in found.values() if process.pid not in spare and _lives(process)]


def kill(work_dir: str, node: int | None = None, root: int | None = None, spare: Collection[int] = ()) -> int:
    """Sends SIGKILL to all that ``find`` finds; returns how many that were, so that 0 means: nothing is left."""
    import psutil

    found = find(work_dir, node, root, spare)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(found)


def kill_until_none(
    work_dir: str, node: int | None = None, root: int | None = None, spare: Collection[int] = (), timeout: float = 10.0
) -> bool:
    """Kills until nothing is left; returns false if something, held by the kernel, outlasts ``timeout``."""
    deadline = time.monotonic() + timeout
    while kill(work_dir, node, root, spare):
        if time.monotonic() >= deadline:
            return False
        time.sleep(GONE_PAUSE)
    return True


def cpu_seconds(work_dir: str, node: int, members: Collection[int]) -> dict[int, float]:
    """Returns the seconds of CPU that each member's processes have used so far; 0 for one of which none is found."""
    import psutil

    used = dict.fromkeys(members, 0.0)
    for process in find(work_dir, node):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            member = int(process.environ().get(variables.MEMBER, "0"))
            if member in used:
                times = process.cpu_times()
                used[member] += times.user + times.system
    return used


def signal_name(number: int) -> str:
    """Returns the name of a signal for a message; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
