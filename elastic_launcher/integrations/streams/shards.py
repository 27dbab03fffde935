"""Deals files out to lanes, so that these have about equally many samples."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from elastic_launcher import sampling
from elastic_launcher.batch import whole_number
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.torch.data.lanes import Decode, Lanes
from elastic_launcher.torch.data.lanes import lanes as make_lanes

File = str | os.PathLike[str]
Read = Callable[[Any, int], Iterable[Any]]

_SECRETS = re.compile(r"(?<=://)[^/\s'\"]*@|(?<=\S)\?[^\s'\"]+")
"""In a text with URLs: their users and passwords, and their queries, which sign some."""


@dataclass(frozen=True)
class _Shards:
    """Attributes:
    read: Reads the samples of a file, from one of them on.
    seed: What the order of a lane's files derives from in each epoch; None leaves it.
    of_lanes: The files of each lane, by number.
    """

    read: Read
    files: Sequence[File]
    counts: Sequence[int]
    seed: int | None
    of_lanes: Sequence[Sequence[int]]

    def open(self, lane: int, epoch: int, start: int) -> Iterator[Any]:
        """Reads a lane; files before the first sample that is wanted are not opened."""
        own = self.of_lanes[lane]
        order: Iterable[int] = range(len(own))
        if self.seed is not None:
            order = sampling.indices(len(own), self.seed + lane, epoch, 0, len(own)).tolist()
        for place in order:
            number = own[place]
            if start < self.counts[number]:
                yield from self._read(number, start)
            start = max(0, start - self.counts[number])

    def _read(self, number: int, start: int) -> Iterator[Any]:
        file, count, at = self.files[number], self.counts[number], start
        for sample in self.read(file, start):
            at += 1
            if at > count:
                break
            yield sample
        if at != count:
            few = f"at most {at}" if 0 < at == start else f"{at}"  # where none is left, there may be fewer yet
            found = few if at < count else f"more than {count}"
            raise ValueError(f"{shown(file)} holds {found} samples, and its count is {count}: count it again")


def lanes_of_files(
    read: Read,
    files: Sequence[File],
    counts: Sequence[int],
    *,
    lanes: int,
    decode: Decode | None,
    seed: int | None,
    shuffle_block: int,
) -> Lanes:
    """Returns lanes over files.

    Args:
        read: Called as ``read(file, start)``; returns the file's samples from number ``start`` on.
        files: Paths or URLs.
        counts: Samples of each.
        lanes: How many lanes there are.
        decode: As of `elastic_launcher.torch.lanes`.
        seed: What the order of a lane's files derives from, in each epoch another one; None keeps their order.
        shuffle_block: As of `elastic_launcher.torch.lanes`.

    Raises:
        TypeError: If files or counts are no list.
        ValueError: If there is not a count for each file, or there are fewer files than lanes.
    """
    count = whole_number("lanes", lanes)
    check_files(files)
    _check_list("counts", counts, "one number for each file, in the order of the files")
    if len(counts) != len(files):
        raise ValueError(f"counts has {len(counts)} numbers, and there are {len(files)} files; give one for each file")
    if count > len(files):
        raise ValueError(
            f"lanes is {count}, and there are {len(files)} files, of which one lane reads each; give at most that"
        )
    dealt = deal_out([whole_number(f"counts[{n}]", samples, 0) for n, samples in enumerate(counts)], count)
    shards = _Shards(read, files, counts, seed, dealt)
    lengths = [sum(counts[number] for number in own) for own in dealt]
    found = make_lanes(shards.open, lanes=count, lengths=lengths, decode=decode, shuffle_block=shuffle_block)
    return replace(found, files=f"{len(files)} files (names in order {_checksum(files, counts, seed):08x})")


def _checksum(files: Sequence[File], counts: Sequence[int], seed: int | None) -> int:
    """Returns a checksum of what must be the same on all ranks; the files may lie in another folder on each.

    Queries of URLs are left out: where they sign a URL, each rank has its own.
    """
    places = [os.fspath(file) for file in files]
    places = [place.partition("?")[0] if is_url(place) else place for place in places]
    folder = os.path.commonprefix(places).rpartition("/")[0]
    return zlib.crc32(repr(([place[len(folder) :] for place in places], [int(one) for one in counts], seed)).encode())


def check_files(files: Sequence[File]) -> None:
    """Refuses what is no list of files.

    Raises:
        TypeError: If it is one path, has no order or can be gone through only once; or one of them is no path.
    """
    if isinstance(files, str | os.PathLike):
        raise TypeError(f"files is {os.fspath(files)!r}; give a list of files")
    _check_list("files", files, "the files in the same order on all ranks: sorted(files)")
    for number, file in enumerate(files):
        if not isinstance(file, str | os.PathLike):
            raise TypeError(f"files[{number}] is {file!r}; it must be a path or a URL")


def _check_list(name: str, given: object, what: str) -> None:
    if isinstance(given, bytes | Set | Mapping) or not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise TypeError(f"{name} is of type {type(given).__name__}; give a list, {what}")


def deal_out(counts: Sequence[int], lanes: int) -> list[list[int]]:
    """Returns the files of each lane by number: the largest ones first, each to the lane that has the least so far."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    samples = [0] * lanes
    for number in sorted(range(len(counts)), key=lambda number: -counts[number]):
        least = min(range(lanes), key=lambda lane: (samples[lane], len(dealt[lane])))
        dealt[least].append(number)
        samples[least] += counts[number]
    return [sorted(own) for own in dealt]


@contextmanager
def open_file(file: File) -> Iterator[BinaryIO]:
    """Opens a path, or a URL through fsspec; an exception of whoever reads it gets a note that names the file.

    One that shows the user or the query of a URL, as fsspec's do, is replaced: messages go to logs.

    Raises:
        ImportError: If fsspec, or the package that it needs for such a URL, is missing.
    """
    place = os.fspath(file)
    try:
        with _opened(place) as content:
            yield content
    except Exception as error:
        note = f"in reading {shown(file)}"
        chain = list(_chain(error))
        if is_url(place) and any(_SECRETS.search(str(one)) for one in chain):
            text = f"{type(chain[-1]).__name__}: {_SECRETS.sub('', str(chain[-1]))}"
            bare = FileNotFoundError(text) if isinstance(error, FileNotFoundError) else OSError(text)
            bare.add_note(note)
            raise bare from None
        error.add_note(note)
        raise


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and, one after the other, those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _opened(place: str) -> AbstractContextManager[BinaryIO]:
    if not is_url(place):
        return open(place, "rb")
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"{shown(place)} needs fsspec: pip install 'elastic-launcher[streams]'") from error
    opened: AbstractContextManager[BinaryIO] = fsspec.open(place, "rb")
    return opened


def shown(file: File) -> str:
    """Returns how messages name a file: a URL without what may be secret, its user and its query."""
    place = os.fspath(file)
    return _SECRETS.sub("", place) if is_url(place) else place
