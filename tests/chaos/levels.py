"""Whether what a job holds levels off over a thousand resizes: memory, descriptors, threads, sockets and store keys.

The rules, of samples taken each time that the job is at its smallest: of what is counted, the last third's least is no
more than the middle third's (a file that is open for a moment adds one, a leak raises the least too); of memory, the
median is no more than `MEMORY_GROWTH` above it; and the median of the last pauses is at most `PAUSE_GROWTH` times that
of the first ones.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from torch.distributed import TCPStore

from elastic_launcher.host import processes
from elastic_launcher.launcher.log_follower import NAME
from tests.chaos.conduct import Conductor
from tests.chaos.lead import LONG
from tests.chaos.schedule import Act, Seat
from tests.support.launches import until

MEMORY_GROWTH = 0.02
PAUSE_GROWTH = 3.0
PAUSE_GRAIN = 0.02  # seconds below which pauses are not told apart
MEMORY = "MB"
FRESH_SECONDS = 20.0  # the launcher closes a log after 10 s of quiet
FIRST = 1  # the node that stays through all of it


@dataclass(frozen=True)
class Level:
    """What one thing came to over the whole job.

    Attributes:
        name: Whose it is, and what.
        middle: Of the middle third: the median of what is measured, the least of what is counted.
        last: The same of the last third.
        most: What the last may be.
    """

    name: str
    middle: float
    last: float
    most: float

    def __str__(self) -> str:
        return f"{self.name} {self.middle:g} -> {self.last:g}{'' if self.last <= self.most else ' GROWS'}"


class Levels:
    """Takes samples of a job at the ends of its resizes.

    Args:
        smallest: Nodes at which samples are taken.
    """

    def __init__(self, smallest: int = 1) -> None:
        self._smallest = smallest
        self.samples: list[dict[str, float]] = []
        self.conductor: Conductor

    def look(self, act: Act) -> None:
        """Takes a sample if the job is at its smallest, and nothing of those who left is there any more."""
        if act.kind == "shrink" and act.to == self._smallest:
            rank = psutil.Process(self.conductor.rank(Seat(0)).pid)
            launcher = psutil.Process(self.conductor.launcher.process.pid)
            agent = psutil.Process(self.conductor.launcher.node_pid(FIRST))
            until(lambda: not self._leavers(), "those who left are gone", LONG)
            until(lambda: not _half_closed(launcher), "the launcher closes their connections", LONG)
            sample = dict[str, float]()
            for name, process in (("launcher", launcher), ("agent", agent), ("rank", rank)):
                sample |= {f"{name} {what}": value for what, value in _held(process).items()}
            sample["launcher descriptors"] -= _fresh_logs(launcher)
            sample["store keys"] = float(self._keys())  # last: to ask is a connection to the launcher
            self.samples.append(sample)

    def judge(self, pauses: Sequence[float]) -> list[Level]:
        """Returns what everything came to.

        Args:
            pauses: Of all resizes, in order.
        """
        found = [_level(name, [sample[name] for sample in self.samples]) for name in self.samples[0]]
        third = len(pauses) // 3
        first, last = median(pauses[:third]), median(pauses[-third:])
        found.append(Level("pause in s, first and last", first, last, max(first, PAUSE_GRAIN) * PAUSE_GROWTH))
        return found

    def _leavers(self) -> list[psutil.Process]:
        work_dir = str(self.conductor.launcher.work_dir)
        stay = {process.pid for process in processes.find(work_dir, FIRST)}
        return processes.find(work_dir, spare=stay)

    def _keys(self) -> int:
        path = self.conductor.launcher.work_dir / "control.json"
        host, _, port = json.loads(path.read_text())["store"].rpartition(":")
        return int(TCPStore(host, int(port), is_master=False).num_keys())


def _half_closed(process: psutil.Process) -> bool:
    return any(connection.status == psutil.CONN_CLOSE_WAIT for connection in process.net_connections())


def _fresh_logs(launcher: psutil.Process) -> int:
    """Returns how many logs it has open that were just written to: it closes them when they have been quiet."""
    count = 0
    for file in launcher.open_files():
        with contextlib.suppress(FileNotFoundError):
            fresh = time.time() - Path(file.path).stat().st_mtime < FRESH_SECONDS
            count += fresh and NAME.fullmatch(Path(file.path).name) is not None
    return count


def _held(process: psutil.Process) -> dict[str, float]:
    return {
        MEMORY: process.memory_info().rss / 1e6,
        "descriptors": float(process.num_fds()),
        "threads": float(process.num_threads()),
        "sockets": float(len(process.net_connections(kind="all"))),
    }


def _level(name: str, values: Sequence[float]) -> Level:
    third, measured = len(values) // 3, name.endswith(MEMORY)
    typical = median if measured else min
    middle, last = typical(values[third : 2 * third]), typical(values[-third:])
    return Level(name, middle, last, middle * (1 + MEMORY_GROWTH) if measured else middle)
