"""Lanes over tar files in the format of WebDataset: the files of a sample stand together, named by its key."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO, Self

from elastic_launcher.integrations.streams.shards import File, lanes_of_files, open_file, shown
from elastic_launcher.torch.data.lanes import Decode, Lanes

_ZSTD = b"\x28\xb5\x2f\xfd"  # with which its files begin
_BYTES = 2**16  # that are looked at at once, behind the mark of a file's end


def lanes(
    files: Sequence[File],
    *,
    lanes: int,
    counts: Sequence[int] | None = None,
    decode: Decode | None = None,
    seed: int | None = None,
    shuffle_block: int = 1024,
) -> Lanes:
    """Describes tar files for `Job.dataloader`.

    A sample is a dict of bytes by extension, as ``{"__key__": "000017", "jpg": ..., "cls": ...}``, or what ``decode``
    makes of it.

    Args:
        files: Paths or URLs, the same on all ranks.
        lanes: How many lanes read them, at most as many as there are files.
        counts: Samples of each file, as `count` returns them; they are not counted here, since each process would.
        decode: Makes a sample of the dict; as of `elastic_launcher.torch.lanes`.
        seed: Has each lane read its files in another order in each epoch.
        shuffle_block: As of `elastic_launcher.torch.lanes`.

    Raises:
        ValueError: If counts are missing, or don't fit to files and lanes.
    """
    if counts is None:
        raise ValueError(
            "webdataset.lanes needs counts=[...], the samples of each tar file: webdataset.count(file) counts those of "
            "one; count once, and keep the numbers beside the files"
        )
    return lanes_of_files(_read, files, counts, lanes=lanes, decode=decode, seed=seed, shuffle_block=shuffle_block)


def count(file: File) -> int:
    """Returns the number of samples of a tar file; reads its headers.

    Raises:
        tarfile.ReadError: If it is damaged or was cut off, or goes on behind the mark of its end.
        ValueError: If a sample's file is a link.
    """
    with open_file(file) as content, _tar(content) as tar:
        return sum(1 for _ in groupby(_members(tar), key=_key))


def _tar(content: BinaryIO) -> tarfile.TarFile:
    """Opens a tar file that says by itself how it is compressed."""
    try:
        return tarfile.open(fileobj=content, tarinfo=_Header)
    except tarfile.ReadError as error:
        content.seek(0)
        if content.read(len(_ZSTD)) == _ZSTD:
            error.add_note("it is compressed by zstd: write it uncompressed, or with gzip, bzip2 or xz")
        raise


def _read(file: File, start: int) -> Iterator[dict[str, Any]]:
    """Reads what files hold as they come: a compressed tar file that goes back is read from its beginning again."""
    with open_file(file) as content, _tar(content) as tar:
        for number, (key, members) in enumerate(groupby(_members(tar), key=_key)):
            if number >= start:
                sample: dict[str, Any] = {}
                for _, name, member in members:
                    if name in sample:
                        raise ValueError(
                            f"{shown(file)} holds sample {key!r} with {name!r} twice; give each its own key"
                        )
                    sample[name] = _content(tar, member)
                yield {"__key__": key, **sample}


class _Header(tarfile.TarInfo):
    """A header; tarfile itself takes a damaged or missing one for the end of the file, and samples would be lost."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the mark of the end
            raise tarfile.ReadError(
                f"the tar file is damaged, or was cut off: {error}, where the next file or the end should be"
            ) from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _key(member: tuple[str, str, tarfile.TarInfo]) -> str:
    return member[0]


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yields the key, the extension and the header of each file that belongs to a sample; reads no contents."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # which would grow with each
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not (dot and stem):
            continue
        if member.islnk() or member.issym():
            raise ValueError(
                f"{member.name} is a link to {member.linkname}, and a sample needs its content: write the tar file "
                "with tar --dereference --hard-dereference"
            )
        if member.isfile():
            yield folder + slash + stem, extension.lower(), member
    _check_end(tar)


def _check_end(tar: tarfile.TarFile) -> None:
    """Refuses a file that goes on behind the mark of its end, where tarfile stops reading."""
    content: Any = tar.fileobj
    while rest := content.read(_BYTES):
        if rest.count(0) < len(rest):
            raise tarfile.ReadError(
                "the tar file goes on behind the mark of its end, like several that cat has joined: join tar files "
                "with tar --concatenate, or list them one by one"
            )
