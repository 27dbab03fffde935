"""Writes a job's progress for Argo: one line N/M in the file that its executor reads.

Invariant: whenever the file is there it holds one whole line with 0 <= N <= M and M > 0. A line without the slash ends
Argo's own container in the pod, and with it the step, however well the training goes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elastic_launcher.host.files import replacing
from elastic_launcher.report.state import JobState

VARIABLE = "ARGO_PROGRESS_FILE"


class ArgoProgress:
    """Writes the progress of the job whose launcher runs in this process, where Argo asks for it in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._told = ""

    def take(self, state: JobState) -> None:
        """Writes how far the job is, where that is known and new.

        Raises:
            OSError: If it can't be written; it is not tried again.
        """
        line = progress(state)
        if self._path is None or not line or line == self._told:
            return
        path, self._path = self._path, None
        with replacing(path) as file:
            file.write(f"{line}\n".encode())
        self._path, self._told = path, line


def argo_progress(environment: Mapping[str, str] = os.environ) -> ArgoProgress:
    """Returns what writes the progress where Argo wants it."""
    path = environment.get(VARIABLE)
    return ArgoProgress(Path(path) if path else None)


def progress(state: JobState) -> str:
    """Returns steps done and steps of the whole training as N/M; empty while these are not known."""
    total = state.total_steps or 0
    return f"{min(max(state.step, 0), total)}/{total}" if total > 0 else ""
