"""How do data and model get from the step to its nodes and back, when those are pods of their own?

A node sees none of the step's files but what lies in a volume that both mount. So an artifact goes by the first of
these ways that there is: it lies in such a volume already; it is copied to a folder, or under a URL, that both see; or
nodes read and write it at its own URI, through fsspec. Where there is none, that is said before a pod is made.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elastic_launcher.checkpoint.storage import RemoteFolder, StorageError, is_url, open_storage
from elastic_launcher.options import ConfigError

FIX = (
    "mount a volume claim on the task and give shared_dir in it, give a URL such as s3://bucket/folder as shared_dir, "
    "or use a pipeline root that fsspec can open"
)


class Artifact(Protocol):
    """What Kubeflow hands over; ``path`` is where the step has it."""

    path: str
    uri: str


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the step and all of its nodes see.

    Attributes:
        mounts: Where nodes have volumes, which the step has as well.
        folder: Folder or URL of this job's own that both see; "" for none.
    """

    mounts: Sequence[str]
    folder: str

    def holds(self, path: str) -> bool:
        """Whether a path of the step lies in one of the nodes' volumes."""
        place = posixpath.normpath(path)
        return any(f"{place}/".startswith(f"{mount.rstrip('/')}/") for mount in map(posixpath.normpath, self.mounts))

    def meets(self) -> bool:
        """Whether the folder is one that both see, as far as can be told from here."""
        return bool(self.folder) and (can_open(self.folder) if is_url(self.folder) else self.holds(self.folder))


def send(data: Artifact, meeting: Meeting) -> str:
    """Makes a data set visible to all nodes; returns where they find it.

    Raises:
        ConfigError: If there is no way.
        OSError: If it can't be copied.
    """
    if meeting.holds(data.path):
        return data.path
    if meeting.meets():
        place = posixpath.join(meeting.folder, "data")
        _upload(Path(data.path), place) if is_url(place) else _copy(Path(data.path), Path(place))
        return place
    if can_open(data.uri):
        return data.uri
    raise ConfigError(f"data: nodes have no way to {data.uri or data.path}: {FIX}")


def model_place(model: Artifact, meeting: Meeting) -> str:
    """Returns where nodes leave the model.

    Raises:
        ConfigError: If there is no way from there to the next step.
    """
    if meeting.holds(model.path):
        return model.path
    if meeting.meets():
        if not is_url(meeting.folder):
            Path(meeting.folder).mkdir(parents=True, exist_ok=True)
        return posixpath.join(meeting.folder, "model")
    if can_open(model.uri):
        return model.uri
    raise ConfigError(f"model: nodes have no way to {model.uri or model.path}: {FIX}")


def fetch(place: str, model: Artifact) -> None:
    """Brings what the nodes have left to where the step's artifact is, if it is not there; nothing where none was left.

    Raises:
        OSError: If it is there and can't be copied.
    """
    if place in (model.path, model.uri):
        return
    if is_url(place):
        _download(place, Path(model.path))
    elif Path(place).exists():
        _copy(Path(place), Path(model.path))


def read_beside(place: str, suffix: str) -> str:
    """Returns the text of what stands beside a model under its name and a suffix; "" where there is none.

    Raises:
        OSError: If it is there and can't be read.
    """
    if not is_url(place):
        path = Path(place + suffix)
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    parent, _, name = (place + suffix).rpartition("/")
    remote = RemoteFolder(parent)
    try:
        with remote.opened() as storage:
            return bytes(storage.cat_file(posixpath.join(remote.root, name))).decode()
    except FileNotFoundError:
        return ""


def can_open(url: str) -> bool:
    """Whether fsspec knows how to open a URL; whether it may is known later."""
    try:
        if is_url(url):
            open_storage(url)
            return True
    except StorageError:
        pass
    return False


def _copy(source: Path, target: Path) -> None:
    """Copies a file or a folder; one that an earlier attempt has left is replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _upload(source: Path, url: str) -> None:
    parent, _, name = url.rpartition("/")
    remote = RemoteFolder(parent)
    with remote.opened() as storage:
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file():
                inside = posixpath.join(name, path.relative_to(source).as_posix()) if path != source else name
                target = posixpath.join(remote.root, inside)
                storage.makedirs(posixpath.dirname(target), exist_ok=True)
                storage.put_file(str(path), target)


def _download(url: str, target: Path) -> None:
    """Copies an object, or all that is below its name; nothing where there is neither."""
    parent, _, name = url.rpartition("/")
    remote = RemoteFolder(parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError), remote.opened() as storage:
        top = posixpath.join(remote.root, name)
        below = [path for path in storage.find(top) if path.startswith(f"{top}/")]
        if not below:  # a store's listing has no object of just that name
            _get(storage, top, target)
        for path in below:
            _get(storage, path, target / posixpath.relpath(path, top))


def _get(storage: Any, path: str, target: Path) -> None:
    """Copies an object, so that a part of one is never taken for it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.draft")
    try:
        storage.get_file(path, str(draft))
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
