"""The permissions of files in a folder that users of one group share.

A launcher and its nodes may be different users: what one of them writes, the other has to read, replace and remove. So
everything made in a folder that its group may write to belongs to that group, which may write to it as well, as the
folder says. In any other folder the umask alone decides. Nothing is made writable to everybody.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from elastic_launcher.host.layout import Layout

_OF_FILES = stat.S_IRGRP | stat.S_IWGRP
_OF_FOLDERS = stat.S_ISGID | stat.S_IRWXG
_READ = stat.S_IRGRP | stat.S_IROTH
_ENTER = stat.S_IXGRP | stat.S_IXOTH


def share(path: Path, *, private: bool = False) -> None:
    """Gives what this process has made the rights that its folder asks for; what the file system refuses stays.

    Args:
        path: A file or a folder, just made.
        private: Whether it was made for its user alone despite the umask, as temporary files are: who may read
            the folder may read it then.
    """
    with contextlib.suppress(OSError):
        folder, made = path.parent.stat(), path.stat()
        mode = stat.S_IMODE(made.st_mode)
        if private:
            mode |= folder.st_mode & (_READ | _ENTER if stat.S_ISDIR(made.st_mode) else _READ)
        if _is_shared(folder.st_mode):
            if made.st_gid != folder.st_gid:
                with contextlib.suppress(OSError):  # of that group this user is not
                    os.chown(path, -1, folder.st_gid)
            mode |= _OF_FOLDERS if stat.S_ISDIR(made.st_mode) else _OF_FILES
        if mode != stat.S_IMODE(path.stat().st_mode):
            os.chmod(path, mode)


def share_tree(path: Path) -> None:
    """Gives a file, or a folder with all that is in it, the rights that its folder asks for: `share`, from above."""
    share(path, private=True)
    if path.is_dir() and not path.is_symlink():
        for below in sorted(path.rglob("*")):
            if not below.is_symlink():
                share(below, private=True)


def share_new(path: Path, since: float) -> None:
    """Gives what was written at a path since a time, as files have it, the rights that its folder asks for.

    All else keeps its own: what is older, folders that hold something older, links and what they lead to, and a job's
    folder of its own with all that is in it. What holds a job's key is never changed.
    """
    for one in _new_at(path, since)[0]:
        share(one, private=True)


def _new_at(path: Path, since: float) -> tuple[list[Path], bool]:
    """Returns what is new at a path, from above, and whether all of it is."""
    new: list[Path] = []
    try:
        found = path.lstat()
        whole = found.st_mtime >= since and Layout(path.parent).control.name not in path.name
        if not stat.S_ISDIR(found.st_mode):
            return [path] if whole and stat.S_ISREG(found.st_mode) else [], whole
        for below in sorted(path.iterdir()):
            if _is_of_a_job(below):
                whole = False
                continue
            new_below, whole_below = _new_at(below, since)
            new += new_below
            whole = whole and whole_below
    except OSError:  # it has gone, or may not be read
        return new, False
    return [path, *new] if whole else new, whole


def _is_of_a_job(folder: Path) -> bool:
    layout = Layout(folder)
    return os.path.exists(layout.job) and os.path.exists(layout.control)


def make_folder(path: Path) -> None:
    """Makes a folder, and those that lead to it, as far as they are not there; their names outlast the machine.

    Raises:
        OSError: If that can't be done.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        share(one)
        with contextlib.suppress(OSError):  # one that may be written and not read: it is made all the same
            sync_folder(one.parent)


def sync_folder(path: Path) -> None:
    """Has the names in a folder put on disk; does nothing on Windows, where a folder can't be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_to_group(path: Path) -> None:
    """Has the group of a folder share it, where this process may say so."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if not _is_shared(mode):
            os.chmod(path, mode | _OF_FOLDERS)


def open_shared(path: Path, flags: int) -> int:
    """Opens a file with flags of ``os.open``, and makes it where it is not there; returns its descriptor.

    Raises:
        OSError: If that can't be done.
    """
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags | os.O_CLOEXEC)
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_CREAT, 0o644)
    share(path)
    return descriptor


def _is_shared(mode: int) -> bool:
    """Whether a folder's group may write, rename and remove in it."""
    return bool(mode & stat.S_IWGRP) and not mode & stat.S_ISVTX
