"""Moves data and model between the step and its nodes, where these are pods of their own.

A node sees none of the step's files but what lies in a volume that both mount. So an artifact goes by the first of
these ways that there is: it lies in such a volume already; it is copied to where the author has said; nodes read and
write it at its own URI, through fsspec, where they reach a store of that kind anyway; it is copied beside the
checkpoints. Without one, the step fails before a pod is made.

Invariant: a copy of a data set is never written again, for nodes of an earlier attempt may read it. What has its name,
or under a URL a marker beside it, is whole. It is what the job began with: a later attempt, for which the data may have
been recreated, uses the first one's, as it resumes from that one's checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elastic_launcher.checkpoint.storage import RemoteFolder, StorageError, is_url, open_storage
from elastic_launcher.host.modes import make_folder, open_to_group, share, share_tree, sync_folder
from elastic_launcher.options import ConfigError

FIX = (
    "mount a volume claim on the task and give shared_dir in it, or give a URL such as s3://bucket/folder as shared_dir"
)

WHOLE = ".whole"
"""The marker beside a copy under a URL once the copy is complete: a store has no renaming."""


class Artifact(Protocol):
    """An artifact of Kubeflow; ``path`` is its path in the step."""

    path: str
    uri: str


@dataclass(frozen=True, slots=True)
class Meeting:
    """The place that the step and all of its nodes see.

    Attributes:
        mounts: Where nodes have volumes, which the step has as well.
        folder: Folder or URL of this job's own that both see; "" for none.
        is_asked: Whether the author wants data and model to travel by that; otherwise it lies beside the checkpoints.
    """

    mounts: Sequence[str]
    folder: str
    is_asked: bool = True

    @property
    def data(self) -> str:
        """The path for a copy of the data set."""
        return posixpath.join(self.folder, "data")

    def holds(self, path: str) -> bool:
        """Whether a path of the step lies in one of the nodes' volumes."""
        place = posixpath.normpath(path)
        return any(f"{place}/".startswith(f"{mount.rstrip('/')}/") for mount in map(posixpath.normpath, self.mounts))

    def is_common(self) -> bool:
        """Whether both can see the folder, as far as this step can know."""
        return bool(self.folder) and (can_open(self.folder) if is_url(self.folder) else self.holds(self.folder))

    def reaches(self, uri: str) -> bool:
        """Whether nodes open a URI by themselves: checkpoints go to a store of its kind, and all may go there."""
        scheme = uri.partition("://")[0]
        return not self.is_asked and self.folder.startswith(f"{scheme}://") and can_open(uri)


def send(data: Artifact, meeting: Meeting) -> str:
    """Makes a data set visible to all nodes, if it is not; returns where they find it.

    Raises:
        ConfigError: If there is no way.
        OSError: If it can't be copied.
    """
    if meeting.holds(data.path):
        return data.path
    if meeting.reaches(data.uri):
        return data.uri
    if not meeting.is_common():
        raise ConfigError(f"data: nodes have no way to {data.uri or data.path}: {FIX}")
    if is_url(meeting.data):
        if not read_beside(meeting.data, WHOLE):
            _upload(Path(data.path), meeting.data)
    elif not Path(meeting.data).exists():
        _bring(Path(data.path), Path(meeting.data))
    return meeting.data


def remove(copy: str) -> None:
    """Removes the copy of a data set, of which an end in between leaves nothing that is taken for one.

    Raises:
        OSError: If it can't be removed.
    """
    if is_url(copy):
        with _opened(copy) as (storage, top):
            storage.rm_file(top + WHOLE)
            storage.rm(top, recursive=True)
        return
    draft = _draft(Path(copy))
    _clear(draft)
    os.rename(copy, draft)
    _clear(draft)


def model_place(model: Artifact, meeting: Meeting) -> str:
    """Returns where nodes leave the model.

    Raises:
        ConfigError: If there is no way from there to the next step.
        OSError: If the folder for it can't be made.
    """
    if meeting.holds(model.path):
        open_to_group(Path(model.path).parent)
        return model.path
    if meeting.reaches(model.uri):
        return model.uri
    if not meeting.is_common():
        raise ConfigError(f"model: nodes have no way to {model.uri or model.path}: {FIX}")
    if not is_url(meeting.folder):
        make_folder(Path(meeting.folder))
        open_to_group(Path(meeting.folder))
    return posixpath.join(meeting.folder, "model")


def fetch(place: str, model: Artifact) -> bool:
    """Brings what the nodes have left to where the step's artifact is, in the place of what an earlier attempt brought.

    Returns whether they have left anything; an empty folder is nothing.

    Raises:
        OSError: If it is there and can't be copied.
    """
    if place in (model.path, model.uri):
        return _is_left(place)
    if is_url(place):
        _download(place, Path(model.path))
    elif Path(place).exists():
        _put(_copy(Path(place), Path(model.path)), Path(model.path))
    else:
        return False
    return _is_left(model.path)


def read_beside(place: str, suffix: str) -> str:
    """Returns the text of the file beside a model with its name and a suffix; "" where there is none.

    Raises:
        OSError: If it is there and can't be read.
    """
    if not is_url(place):
        path = Path(place + suffix)
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        with _opened(place) as (storage, top):
            return bytes(storage.cat_file(top + suffix)).decode()
    except FileNotFoundError:
        return ""


def can_open(url: str) -> bool:
    """Whether fsspec knows how to open a URL; whether it may is known later."""
    with contextlib.suppress(StorageError):
        return is_url(url) and bool(open_storage(url))
    return False


@contextlib.contextmanager
def _opened(url: str) -> Iterator[tuple[Any, str]]:
    """Gives a storage and the path in it to a block, and turns its errors into OSError."""
    parent, _, name = url.rpartition("/")
    remote = RemoteFolder(parent)
    with remote.opened() as storage:
        storage.invalidate_cache()  # others write there
        yield storage, posixpath.join(remote.root, name)


def _is_left(place: str) -> bool:
    """Whether something is at a place; under a URL that can't be listed, it is believed."""
    if not is_url(place):
        path = Path(place)
        return path.is_file() or (path.is_dir() and any(path.iterdir()))
    with contextlib.suppress(OSError, StorageError), _opened(place) as (storage, top):
        # a store's listing of a name has no object of just that name
        return any(path == top or path.startswith(f"{top}/") for path in storage.find(posixpath.dirname(top)))
    return True


def _copy(source: Path, target: Path) -> Path:
    """Copies a file or a folder to a draft beside its target; one that an earlier attempt has left is replaced."""
    draft = _draft(target)
    draft.parent.mkdir(parents=True, exist_ok=True)
    _clear(draft)
    if source.is_dir():
        shutil.copytree(source, draft)
    else:
        shutil.copyfile(source, draft)
    return draft


def _bring(source: Path, target: Path) -> None:
    """Copies a file or a folder to a place that other attempts may copy it to as well; the first one's stays."""
    make_folder(target.parent)
    own = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    share(own, private=True)
    try:
        draft = _copy(source, own / target.name)
        share_tree(draft)
        _put_on_disk(draft)
        os.rename(draft, target)
        sync_folder(target.parent)
    except OSError:
        if not target.exists():  # otherwise another one was first, and has cleared this one's away
            raise
    finally:
        shutil.rmtree(own, ignore_errors=True)
    for left in target.parent.glob(f".{target.name}.*"):  # by attempts that were killed
        with contextlib.suppress(OSError):  # another attempt clears it away, too, or it belongs to another user
            _clear(left)


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.draft")


def _clear(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put(draft: Path, target: Path) -> None:
    """Replaces a file or folder by a draft."""
    _clear(target)
    os.rename(draft, target)


def _put_on_disk(draft: Path) -> None:
    """Flushes a draft to disk: after a loss of power, its name must not lead to a part of it."""
    for path in [draft, *draft.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def _upload(source: Path, url: str) -> None:
    source.stat()  # one that is not there is no copy, and gets no marker
    with _opened(url) as (storage, top):
        storage.makedirs(posixpath.dirname(top), exist_ok=True)
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file():
                target = posixpath.join(top, path.relative_to(source).as_posix()) if path != source else top
                storage.makedirs(posixpath.dirname(target), exist_ok=True)
                storage.put_file(str(path), target)
        storage.pipe_file(top + WHOLE, b"all of it is there\n")


def _download(url: str, target: Path) -> None:
    """Copies an object, or all that is below its name; nothing where there is neither."""
    draft = _draft(target)
    draft.parent.mkdir(parents=True, exist_ok=True)
    _clear(draft)
    try:
        with _opened(url) as (storage, top):
            below: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                below = [path for path in storage.find(top) if path.startswith(f"{top}/")]
                if not below:  # a store's listing has no object of just that name
                    storage.get_file(top, str(draft))
                    _put(draft, target)
            for path in below:
                part = draft / posixpath.relpath(path, top)
                part.parent.mkdir(parents=True, exist_ok=True)
                storage.get_file(path, str(part))
            if below:
                _put(draft, target)
    finally:
        _clear(draft)
