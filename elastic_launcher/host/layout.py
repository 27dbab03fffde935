"""The paths in a job's folder, and the temporary folders of its nodes."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

LONGEST_TMPDIR = 60
"""Characters of a temporary folder's path under which unix sockets (108 at most) still have names."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths in a work directory; it touches no file."""

    path: Path

    @property
    def job(self) -> Path:
        """The id and the configuration of the job, written first."""
        return self.path / "job.json"

    @property
    def lock(self) -> Path:
        """Held by the launcher that owns the folder."""
        return self.path / "job.lock"

    @property
    def control(self) -> Path:
        """Address and key of the coordinator."""
        return self.path / "control.json"

    @property
    def origin(self) -> Path:
        """The checkpoint that members which start now begin with."""
        return self.path / "origin.json"

    @property
    def events(self) -> Path:
        """The events, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def reports(self) -> tuple[Path, ...]:
        """The reports of the job: the timeline, the summary and the numbers."""
        return tuple(self.path / name for name in ("report.html", "report.md", "metrics.json"))

    @property
    def files(self) -> tuple[Path, ...]:
        """The launcher's files in the folder itself."""
        return (self.job, self.lock, self.control, self.origin, self.events, *self.reports)

    @property
    def nodes(self) -> Path:
        """The folder with a file per node, and one per rank that ended."""
        return self.path / "nodes"

    @property
    def logs(self) -> Path:
        """The logs of ranks, agents and torchrun."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The starting point of an unfinished job."""
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        """Compiled code that the job's nodes share."""
        return self.path / "cache"

    def node_file(self, node: int) -> Path:
        """The file in which a node's agent describes itself."""
        return self.nodes / f"{node}.json"

    def exit_file(self, node: int, local_rank: int) -> Path:
        """The file of a rank's exit."""
        return self.nodes / f"{node}-{local_rank}.exit"

    def lives_file(self, node: int) -> Path:
        """The file of the starts and ends of a node's workers, in a restart-based resize."""
        return self.nodes / f"{node}.lives"

    def rank_log(self, node: int, local_rank: int) -> Path:
        """The log of a rank's script."""
        return self.logs / f"{node}-{local_rank}.log"

    def node_log(self, node: int) -> Path:
        """The log of a node's agent and its torchrun."""
        return self.logs / f"{node}.log"

    def torchrun_logs(self, node: int) -> Path:
        """The folder that torchrun keeps its own files in."""
        return self.logs / f"torchrun-{node}"

    def tmp(self, node: int) -> Path:
        """A node's own temporary folder, removed with it; elsewhere if its path would be too long for sockets."""
        path = self.path / "tmp" / str(node)
        if len(str(path)) <= LONGEST_TMPDIR:
            return path
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"elastic-{digest}-{node}"

    def make_tmp(self, node: int) -> Path:
        """Recreates a node's temporary folder, for this user alone, and returns it."""
        self.remove_tmp(node)  # of a job that was killed in a folder of this path
        path = self.tmp(node)
        while True:
            path.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another node has removed the last folder beside it
                path.mkdir(mode=0o700)
                return path

    def remove_tmp(self, node: int) -> None:
        """Removes a node's temporary folder, if it is there."""
        path = self.tmp(node)
        shutil.rmtree(path, ignore_errors=True)
        if path.parent.parent == self.path:
            with contextlib.suppress(OSError):  # another node's folder is still in it
                path.parent.rmdir()
