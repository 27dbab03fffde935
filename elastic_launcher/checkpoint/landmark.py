"""Does a path lead to one and the same folder on all machines? A file tells that one of them puts there.

Its value is made of the job's key, so that each coordinator of the job puts the same: a node may look for it while one
replaces another.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

MEND = (
    "launcher and nodes need one and the same: mount one volume claim at that path, writable, in the launcher's pod "
    "and in the pod template, or give a URL such as s3://bucket/folder"
)
"""What is to be done where a folder is not the same."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """The file of one job.

    Attributes:
        name: What it is called; no other job's is called so.
        value: What is in it.
    """

    name: str
    value: str


def landmark_of(job_id: str, key: bytes) -> Landmark:
    """Returns a job's landmark."""
    name = f".elastic-launcher-{job_id}"
    return Landmark(name, hmac.new(key, f"landmark {name}".encode(), hashlib.sha256).hexdigest())


def put(folder: Path, landmark: Landmark) -> None:
    """Puts a landmark into a folder, which is made if it is not there; who looks sees all of it or nothing.

    Raises:
        OSError: If it can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft = _draft(folder, landmark)
    try:
        draft.write_text(landmark.value, encoding="utf-8")
        draft.replace(folder / landmark.name)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()  # where it was not renamed


def remove(folder: Path, landmark: Landmark) -> None:
    """Removes a landmark, if that can be done."""
    with contextlib.suppress(OSError):
        (folder / landmark.name).unlink()


def missed(folder: Path, landmark: Landmark) -> str:
    """Returns what is wrong with a folder as this machine sees it, to follow the machine's name; "" if nothing is."""
    try:
        # listed, not asked for by name: network file systems remember for a while what was not there
        known = landmark.name in os.listdir(folder)
        same = known and (folder / landmark.name).read_text(encoding="utf-8") == landmark.value
    except FileNotFoundError:
        return "has no such folder"
    except OSError as error:
        return f"can't read it ({error.strerror})"
    if not same:
        return "sees another folder there"
    draft = _draft(folder, landmark)
    try:
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        return f"can't write there ({error.strerror})"
    return ""


def _draft(folder: Path, landmark: Landmark) -> Path:
    return folder / f"{landmark.name}.{secrets.token_hex(4)}"
