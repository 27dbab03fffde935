"""Lanes: how a script describes data that can only be read forward, in several sources side by side."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher.batch import whole_number
from elastic_launcher.lane_order import LaneOrder

Open = Callable[[int, int, int], Iterable[Any]]
Decode = Callable[[Any], Any]

COUNTED = "to count them once: [sum(1 for _ in open(lane, 0, 0)) for lane in range(lanes)]"


@dataclass(frozen=True, eq=False)
class Lanes:
    """What `lanes` returns, for `Job.dataloader`.

    Attributes:
        open: Opens a lane.
        lengths: Samples in an epoch, by lane.
        exact: Whether a lane ends with them.
        decode: Makes a sample of what a lane gives; None where that is the sample.
        block: Samples of a lane that are shuffled among each other.
        files: What messages call the files that lanes read; empty where they are not known.
    """

    open: Open
    lengths: tuple[int, ...]
    exact: bool
    decode: Decode | None
    block: int
    files: str = ""

    def __len__(self) -> int:
        return sum(self.lengths)

    @property
    def name(self) -> str:
        """What messages call them; other lengths, blocks or files make another name."""
        lengths = zlib.crc32(repr((self.lengths, self.exact)).encode())
        over = f" over {self.files}" if self.files else ""
        return f"{len(self.lengths)} lanes (lengths {lengths:08x}, blocks of {self.block}){over}"


def lanes(
    open: Open,
    *,
    lanes: int,
    lengths: Sequence[int] | int | None = None,
    decode: Decode | None = None,
    shuffle_block: int = 1024,
) -> Lanes:
    """Describes data that can only be read forward, for `Job.dataloader`: several lanes, each opened at any sample.

    Each step takes samples of all lanes in proportion to their lengths, so a rank reads a few lanes.

    Args:
        open: Called as ``open(lane, epoch, start)``; returns an iterable of what the lane has from number ``start``
            on, without what is before it. It must give the same in the same order whenever, and on whichever rank, it
            is called for this lane and epoch.
        lanes: How many there are, at most the global batch; best a number that divides it, and a multiple of the ranks
            that the job may have.
        lengths: How many samples each lane has; or one number, if an epoch takes so many of each lane, however many it
            has.
        decode: Makes a sample of what ``open`` gives; called for those alone that this process needs, not for those
            that it reads past.
        shuffle_block: With ``shuffle=True``, how many successive samples of a lane are shuffled among each other; a
            rank holds so many of each lane that it reads, not decoded.

    Raises:
        TypeError: If ``open`` can't be called, or a number is not a whole one.
        ValueError: If lengths are missing, too many or too few, or a number is too small.
    """
    if not callable(open):
        raise TypeError(f"open is {type(open).__name__}; it must be a function: open(lane, epoch, start)")
    count = whole_number("lanes", lanes)
    if lengths is None:
        raise ValueError(
            "lanes need lengths=[...], the number of samples of each lane, or lengths=N, if an epoch takes N of each: "
            f"ranks agree by them on where an epoch ends. If they are not known, {COUNTED}"
        )
    if isinstance(lengths, Iterable):
        each = tuple(whole_number(f"lengths[{lane}]", length, 0) for lane, length in enumerate(lengths))
        if len(each) != count:
            raise ValueError(f"lengths has {len(each)} numbers, and there are {count} lanes; give one for each lane")
    else:
        each = (whole_number("lengths", lengths),) * count
    if not sum(each):
        raise ValueError("all lanes have length 0; give lanes with at least one sample")
    return Lanes(open, each, isinstance(lengths, Iterable), decode, whole_number("shuffle_block", shuffle_block))


def lane_order(lanes: Lanes, batch: int) -> LaneOrder:
    """Returns what each step of a global batch takes of lanes.

    Raises:
        ValueError: If a step can't take a sample of each lane.
    """
    count = len(lanes.lengths)
    if count > batch:
        raise ValueError(
            f"there are {count} lanes, and the global batch has {batch} samples, too few for one of each lane: have at "
            f"most {batch} lanes, each of which reads several files one after the other"
        )
    return LaneOrder(lanes.lengths, batch)
