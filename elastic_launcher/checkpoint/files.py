"""Writes and verifies a checkpoint's files: a file is complete, or is known not to be."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from elastic_launcher.checkpoint.manifest import CheckpointDamaged, CheckpointError, FileEntry, Manifest
from elastic_launcher.host.modes import share

MANIFEST = "manifest.json"
STATE = "state.json"
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What the system says where no such file was written, or something else lies in its place."""
_CHUNK = 4 << 20


def seal(path: Path) -> FileEntry:
    """Has a file that was just written put on disk, and returns what is to be said of it.

    Every user who may read the folder may read the file.

    Raises:
        OSError: If it can't be.
    """
    share(path, private=True)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        size, crc = _measure(file.fileno())
    return FileEntry(path.name, size, crc)


def write_text(path: Path, text: str) -> None:
    """Writes a small file, and has it put on disk.

    Raises:
        OSError: If it can't be.
    """
    with open(path, "w", encoding="utf-8") as file:
        share(path)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint, without looking at its other files.

    Raises:
        CheckpointError: If it can't be used.
        OSError: If the disk does not give it: it may be as good as ever.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes().decode()
    except MISSING as error:
        raise CheckpointDamaged(f"{path} is missing") from error
    except UnicodeDecodeError as error:
        raise CheckpointDamaged(f"{path} can't be read: {error}") from error
    try:
        return Manifest.from_text(text)
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from error


def check(folder: Path) -> Manifest:
    """Reads all of a checkpoint, and returns its manifest.

    Raises:
        CheckpointError: If any of its files is missing, cut short or changed.
        OSError: If the disk does not give them: they may be as good as ever.
    """
    manifest = read_manifest(folder)
    for entry in manifest.files:
        path = folder / entry.name
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.size:
                    kind = "cut short" if size < entry.size else "too long"
                    raise CheckpointDamaged(f"{path} is {kind}: {size} bytes instead of {entry.size}")
                if _measure(file.fileno())[1] != entry.crc32:
                    raise CheckpointDamaged(f"{path} is damaged: its checksum is wrong")
        except MISSING as error:
            raise CheckpointDamaged(f"{path} is missing") from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    return manifest


def _measure(descriptor: int) -> tuple[int, int]:
    """Returns the size and the checksum of an open file."""
    size = crc = 0
    while chunk := os.read(descriptor, _CHUNK):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
    return size, crc
