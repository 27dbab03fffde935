"""Checks by a marker file that a path leads to the same folder on all machines.

Its value is made of the job's key, so that each coordinator of the job puts the same: a node may look for it while one
replaces another.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.host.files import replacing
from elastic_launcher.host.modes import make_folder, open_to_group, share

MEND = (
    "launcher and nodes need one and the same: mount one volume claim at that path, writable, in the launcher's pod "
    "and in the pod template, or give a URL such as s3://bucket/folder"
)
"""What is to be done where a folder is not the same."""
ONE_GROUP = (
    "run both as one user (securityContext.runAsUser), or as users of one group that the folder belongs to "
    "(fsGroup or supplementalGroups), without the sticky bit on the folder"
)
"""What is to be done where one side can't use what the other one makes."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """The file of one job.

    Attributes:
        name: What it is called; no other job's is called so.
        value: What is in it.
        shared: Whether those who look for it may be other users, of a group that whoever puts it is of.
    """

    name: str
    value: str
    shared: bool = False


def landmark_of(job_id: str, key: bytes, shared: bool = False) -> Landmark:
    """Returns a job's landmark."""
    name = f".elastic-launcher-{job_id}"
    return Landmark(name, hmac.new(key, f"landmark {name}".encode(), hashlib.sha256).hexdigest(), shared)


def put(folder: Path, landmark: Landmark) -> None:
    """Puts a landmark into a folder, which is made if it is not there; who looks sees all of it or nothing.

    Raises:
        OSError: If it can't be written.
    """
    make_folder(folder)
    if landmark.shared:
        open_to_group(folder)
    with replacing(folder / landmark.name) as file:
        file.write(landmark.value.encode())


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


@contextlib.contextmanager
def sample(folder: Path, landmark: Landmark) -> Iterator[str]:
    """Makes what a node will make there, a folder with a file in it, for the launcher to try: `judge`.

    Yields:
        Its name in the folder.
    """
    made = _draft(folder, landmark)
    try:
        with contextlib.suppress(OSError):  # a full disk, say: that stops no training
            made.mkdir()
            share(made)
            descriptor, path = tempfile.mkstemp(dir=made)  # for this user alone, as safetensors makes its files
            os.close(descriptor)
            share(Path(path), private=True)
        yield made.name
    finally:
        shutil.rmtree(made, ignore_errors=True)


def judge(folder: Path, name: str) -> str:
    """Returns why this process can't go on from a node's `sample` in a folder, which is removed; "" if it can.

    Raises:
        OSError: If the folder can't be read for now.
    """
    made = folder / name
    try:
        said = _said(made.stat())
        for path in made.iterdir():
            said = _said(path.stat())
            path.read_bytes()
            path.unlink()
        made.rmdir()
    except FileNotFoundError:
        return ""  # what was just made is not seen yet
    except PermissionError as error:
        groups = ", ".join(map(str, sorted({os.getgid(), *os.getgroups()})))
        return (
            f"can't read or remove what such a node makes there ({error.strerror}: it is of {said}, and the launcher "
            f"of uid {os.getuid()}, groups {groups})"
        )
    return ""


def _said(made: os.stat_result) -> str:
    return f"uid {made.st_uid}, group {made.st_gid}, mode {stat.S_IMODE(made.st_mode):04o}"


def _draft(folder: Path, landmark: Landmark) -> Path:
    return folder / f"{landmark.name}.{secrets.token_hex(4)}"
