"""Commands that are waited for, and processes that outlive the command that started them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOKS_EVERY = 0.1  # for what offers no event to wait on: a server's first answer, a cgroup's last process
ENDS_WITHIN = 20.0  # etcd and the API server end within seconds; whoever needs longer is killed


class ClusterError(Exception):
    """The machine's cluster cannot do what was asked; the message says what to do."""


def run(*argv: str | Path, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command to its end and returns what it printed.

    Raises:
        ClusterError: If it cannot be run or fails, with what it said.
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=env, check=False)
    except OSError as error:
        raise ClusterError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(map(str, argv))}: exit {done.returncode}: {said}")
    return done.stdout


def until(true: Callable[[], bool], what: str, seconds: float) -> None:
    """Waits for something that can only be looked at.

    Raises:
        ClusterError: If it does not become true in time.
    """
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise ClusterError(f"not within {seconds:.0f} s: {what}")
        time.sleep(LOOKS_EVERY)


def _started(pid: int) -> int | None:
    """Returns when a living process started, in the kernel's ticks: this tells it from a later one of its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process that is known by a file, so that any later command finds it again.

    Attributes:
        name: What it is called in messages.
        file: Where its number and its start are noted.
    """

    name: str
    file: Path

    def note(self, pid: int) -> None:
        """Notes which process it is."""
        self.file.write_text(json.dumps({"pid": pid, "started": _started(pid)}))

    @property
    def pid(self) -> int | None:
        """Its number, or None if it is not running."""
        try:
            noted = json.loads(self.file.read_text())
        except FileNotFoundError:
            return None
        return noted["pid"] if noted["started"] is not None and _started(noted["pid"]) == noted["started"] else None

    def end(self, first: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and waits for that; kills it where it does not end by itself."""
        if (pid := self.pid) is not None:
            handle = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                for number in (first, signal.SIGKILL):
                    signal.pidfd_send_signal(handle, number)
                    if poll.poll(ENDS_WITHIN * 1000):
                        break
                else:
                    raise ClusterError(f"{self.name} (process {pid}) does not end, not even when killed")
            except ProcessLookupError:  # it ended by itself meanwhile
                pass
            finally:
                os.close(handle)
        self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Daemon(Process):
    """A process of the host that this command may start.

    Attributes:
        log: What it writes goes there.
    """

    log: Path

    def start(self, argv: Sequence[str | Path]) -> None:
        """Starts it, unless it runs."""
        if self.pid is not None:
            return
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self.note(child.pid)

    def last_words(self) -> str:
        """Returns the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
