"""The identity of a job besides its options: the code that it runs, and where its data comes from."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_launcher.config import JobConfig

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_ATTEMPT = re.compile(rf"({_UUID}/[^/]+)/{_UUID}(/[^/]+)$")
"""Kubeflow keeps what a task makes under the run, the task and the attempt at it."""
_OF_LOCAL_RUN = re.compile(r"^.*/([^/]+)-\d{4}(?:-\d{2}){5}-\d+/")
"""Its local runner has a folder for each run."""


@dataclass(frozen=True, slots=True)
class Content:
    """The code and the data of a job; an unknown value equals any other.

    Attributes:
        code: Name and digest of the script's text, and of the files beside it that nodes are handed, the script first.
        data: Where the data is from: a URI, or a path as the launcher's directory sees it.
    """

    code: tuple[str, ...] = ()
    data: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"code": list(self.code), "data": self.data}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Content:
        """Returns what ``to_dict`` wrote; what is missing, as of an earlier version, is not known."""
        return cls(tuple(map(str, document.get("code", ()))), str(document.get("data", "")))


def digests(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Returns names and digests of texts; the line breaks that a text ends with don't count."""
    return tuple(f"{name} {hashlib.sha256(text.rstrip()).hexdigest()[:12]}" for name, text in files.items())


def differences(theirs: JobConfig, ours: JobConfig, there: Content | None, here: Content) -> dict[str, tuple[str, str]]:
    """Returns in what two jobs differ: by what, the message about it, and the name by which a user accepts it, or "".

    Args:
        theirs: The job that was there first.
        ours: The one that wants to be the same.
        there: What that one ran and read; None where it is not known.
        here: What this one runs and reads.
    """
    parts = _parts(theirs), _parts(ours)
    found = {
        what: (f"{what} {parts[0][what] or 'not given'} there, {parts[1][what] or 'not given'} here", accept)
        for what, accept in _ACCEPTED_AS.items()
        if parts[0][what] != parts[1][what]
    }
    if there is None:
        return found
    if "script" not in found and (names := changed(there.code, here.code)):
        found["code"] = f"the code there is another one than here ({', '.join(names)})", "script"
    if there.data != here.data:
        said = f"data from {there.data or 'nowhere'} there, from {here.data or 'nowhere'} here"
        found["data"] = said, "dataset"
    return found


_ACCEPTED_AS = {"script": "", "arguments": "arguments", "global batch size": "global-batch-size"}
"""What makes two jobs the same among their options, and the name by which a user accepts that it differs."""


def _parts(config: JobConfig) -> dict[str, str]:
    """Returns them: the script counts by its name, since a folder may be moved to another machine."""
    script = f"module {config.module}" if config.module else os.path.basename(str(config.script).rstrip("/"))
    batch = "" if config.global_batch_size is None else str(config.global_batch_size)
    return {"script": script, "arguments": " ".join(map(repr, config.arguments)), "global batch size": batch}


def changed(there: tuple[str, ...], here: tuple[str, ...]) -> list[str]:
    """Returns the names of the files that differ, or are in one of two jobs only; none where one is not known."""
    return sorted({one.rpartition(" ")[0] for one in {*there} ^ {*here}}) if there and here else []


def source_of(uri: str) -> str:
    """Returns by what name an artifact of Kubeflow is known: the same for each attempt of a run to make it."""
    if "://" in uri:
        return _OF_ATTEMPT.sub(r"\1\2", uri)
    return _OF_LOCAL_RUN.sub(r"\1/", uri)


def path_seen_from(directory: Path, path: str) -> str:
    """Returns a path relative to a directory that holds it, so that both may be moved; a URL as it is."""
    inside = "://" not in path and Path(path).is_relative_to(directory)
    return os.path.relpath(path, directory) if inside else path
