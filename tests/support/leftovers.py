"""Where a launch runs, and what is left of it there: processes, sockets, files.

Whatever a launch starts stays a descendant of the process that watches it (a subreaper), also when all in between are
gone or have another environment. What its processes hold is looked at while they live and known by number: a socket by
its inode, memory and files by name. So other jobs on the same machine never count.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from elastic_launcher.host import processes
from tests.support.launches import Launcher, launched, subreaper, until
from tests.support.places import SCRIPTS

SCRIPT = SCRIPTS / "tiny_train.py"
LOOK_SECONDS = 0.25  # between looks at what the job's processes hold
END_SECONDS = 10.0  # for killed processes to be gone, on a machine that does other things too
PUBLIC = tuple(Path(name) for name in ("/tmp", "/var/tmp", "/dev/shm", pwd.getpwuid(os.getuid()).pw_dir))
LISTENS = "0A"


def script_lines(text: str) -> list[str]:
    """Returns the script's own lines of what was shown: libraries may add to them when a rank ends."""
    return re.findall(r"^\[rank \d+\] (?:ready|over \d+)$", text, re.MULTILINE)


class Stage:
    """Folders for one launch at a time, and all that was seen of it.

    Args:
        root: An empty folder.
        job: Name of the work directory.
        script: What is launched.

    Attributes:
        here: The directory that the launcher is started in.
        work_dir: Its work directory.
        seen: All processes of the launch that were seen.
        ports: The TCP ports that they were seen to listen on.
        own: Names in that directory that may be left there.
    """

    def __init__(self, root: Path, job: str = "job", script: Path = SCRIPT) -> None:
        self.root = root.resolve()
        self.home, self.tmp, self.here = (self.root / name for name in ("home", "tmp", "here"))
        for folder in (self.home, self.tmp, self.here):
            folder.mkdir()
        self.work_dir = self.here / job
        self._script = script
        self.seen: set[psutil.Process] = set()
        self.ports: set[int] = set()
        self._sockets: set[int] = set()
        self._held: set[str] = set()
        self._before = _descendants()
        self._public = {folder: _names(folder) for folder in PUBLIC}
        self.own = {"stop", "hints.json", self.work_dir.name}
        self._launchers: list[int] = []
        self._looking = threading.Lock()

    @contextlib.contextmanager
    def launched(self, *options: str, script: Sequence[str] = ()) -> Iterator[Launcher]:
        """Runs the script with folders of its own, watches it, and ends whatever is left of it at the end.

        Args:
            options: The launcher's.
            script: The script's own arguments.
        """
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,))
        with subreaper():
            try:
                with self.again(*options, script=script) as launcher:
                    watch.start()
                    try:
                        yield launcher
                    finally:
                        over.set()
                        watch.join()
            finally:
                self._end_all()

    @contextlib.contextmanager
    def again(self, *options: str, script: Sequence[str] = ()) -> Iterator[Launcher]:
        """Runs another launcher of the same job, while it is watched: the one before it is dead."""
        environment = {"HOME": str(self.home), "TMPDIR": str(self.tmp), "PYTHONDONTWRITEBYTECODE": "1"}
        command = (*options, "--", self._script, *script)
        with launched(*command, cwd=self.here, work_dir=self.work_dir, environment=environment) as launcher:
            self._launchers.append(launcher.process.pid)
            self.own |= {launcher.stdout_path.name, launcher.stderr_path.name}
            yield launcher

    def look(self) -> None:
        """Notes what the job's processes are and hold at the moment."""
        with self._looking:
            listening = _listening()
            for process in self._living():
                self.seen.add(process)
                sockets, files = _held_by(process.pid)
                self._sockets |= sockets
                self._held |= files
                self.ports |= {listening[inode] for inode in sockets & listening.keys()}

    def left(self, patience: float = END_SECONDS) -> list[str]:
        """Returns what is left of the launch outside its work directory, a line each.

        Args:
            patience: Seconds that its processes may take to end.
        """
        with contextlib.suppress(AssertionError):
            until(lambda: not self._living(), "all processes end", patience)
        found = [f"process {process.pid}: {_described(process)}" for process in self._living()]
        found += [f"socket {socket}" for socket in _sockets_among(self._sockets)]
        found += [f"file {path}" for path in self._files()]
        return found

    def assert_nothing_left(self, patience: float = END_SECONDS) -> None:
        """Fails if anything is left of the launch outside its work directory, or of its temporary files inside."""
        assert self.left(patience) == []
        assert not (self.work_dir / "tmp").exists()

    def _files(self) -> list[Path]:
        found = [path for folder in (self.home, self.tmp) for path in folder.iterdir()]
        found += [path for path in self.here.iterdir() if path.name not in self.own]
        for folder, before in self._public.items():
            found += [folder / name for name in _names(folder) - before if self._made(folder / name)]
        return found

    def _made(self, path: Path) -> bool:
        """Tells whether a new file in a folder that all use is the launch's: by a process id in its name, or held."""
        if path == self.root or path in self.root.parents:
            return False
        pids = {str(process.pid) for process in self.seen}
        held = any(name == str(path) or name.startswith(f"{path}/") for name in self._held)
        return held or not pids.isdisjoint(re.findall(r"\d+", path.name))

    def _living(self) -> set[psutil.Process]:
        """Returns the launch's processes; those that were left to us and are dead are taken off the list."""
        found = _descendants() | set(processes.find(str(self.work_dir)))
        found -= self._before
        for process in list(found):
            with contextlib.suppress(psutil.Error, ChildProcessError, ProcessLookupError):
                adopted = process.ppid() == os.getpid() and process.pid not in self._launchers
                ours = os.getsid(process.pid) == os.getsid(0)  # perhaps a test's own, which asks for its exit status
                how = os.WEXITED | os.WNOHANG | (os.WNOWAIT if ours else 0)
                if adopted and os.waitid(os.P_PID, process.pid, how):
                    found.discard(process)
        return {process for process in found if process.is_running()}

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            self.look()

    def _end_all(self) -> None:
        def ended() -> bool:
            for process in self._living():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not self._living()

        until(ended, "what the launch left is killed")


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return "gone meanwhile"


def _held_by(pid: int) -> tuple[set[int], set[str]]:
    """Returns the inodes of a process's sockets, and the files in public folders that it has open or mapped."""
    links: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            links += line.split(maxsplit=5)[5:]
    sockets = {int(link[len("socket:[") : -1]) for link in links if link.startswith("socket:[")}
    files = {link for link in links if any(link.startswith(f"{folder}/") for folder in PUBLIC)}
    return sockets, files


def _rows(table: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    except OSError:  # a machine without IPv6
        return []


def _listening() -> dict[int, int]:
    """Returns the port of each TCP socket that listens, by inode."""
    rows = [row for table in ("tcp", "tcp6") for row in _rows(table)]
    return {int(row[9]): int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS}


def _sockets_among(inodes: set[int]) -> list[str]:
    """Returns which of these sockets still exist."""
    found = []
    for table, column in (("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9), ("unix", 6)):
        found += [f"{table} {' '.join(row[1:])}" for row in _rows(table) if int(row[column]) in inodes]
    return found
