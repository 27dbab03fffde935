"""The micro-batches of one rank in one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from elastic_launcher.batch import Share
from elastic_launcher.batch_schedule import StepSamples

SPARE_SAMPLES = 2  # a rank without a share runs on two samples, since batch norm refuses one

Piece = tuple[int, int, int]
"""The samples of a micro-batch: epoch, its first sample's place in the epoch's order, number of samples."""


@dataclass(frozen=True, slots=True)
class Part:
    """The virtual rank to which a micro-batch belongs, in a deterministic job.

    Attributes:
        virtual_rank: Its number.
        samples: Its samples of the step.
        first: Whether the micro-batch is its first one.
        last: Whether it is its last one.
    """

    virtual_rank: int
    samples: int
    first: bool
    last: bool


class Micro(Protocol):
    """What a script may know of the micro-batch that it works on; `Job.micro`."""

    @property
    def first(self) -> bool:
        """Whether it is the first one of an attempt at a step on this rank; each attempt at a redone step has one."""

    @property
    def last(self) -> bool:
        """Whether it completes this rank's part of the step: the ranks reduce in its last `backward`."""

    @property
    def rehearsal(self) -> bool:
        """Whether it is tried before this process is admitted, and nothing of it is kept."""

    @property
    def dropped(self) -> bool:
        """Whether the attempt is given up: nothing of it counts. Known after `backward`."""


@dataclass
class MicroBatch:
    """The micro-batch that the script works on.

    Attributes:
        samples: Samples that count; 0 in a rehearsal or without a share.
        count: Samples of the whole step, over all ranks.
        last: Whether it completes this rank's part of the step.
        first: Whether it begins this rank's part of the step, at each attempt.
        rehearsal: Whether nothing of it is kept.
        calls: `backward` calls so far.
        synced: Whether the last of them ended with the reduced gradient.
        dropped: Whether the step does not count: a peer was lost, or a rank ended the training before it.
        error: What lost the step.
        recovered: Whether this rank has found back to its peers since, or did not lose them.
        piece: Which samples it has.
        broke: The message about its backward pass if an exception broke that off.
        fits: Samples that are known to fit, in a rehearsal that looks for the most.
        owners: For which optimizers `backward` was called, in a rehearsal; -1 where the script named none.
        part: The virtual rank that it belongs to; None where each rank is one, and for samples that don't count.
    """

    samples: int
    count: int
    last: bool
    first: bool = True
    rehearsal: bool = False
    calls: int = 0
    synced: bool = False
    dropped: bool = False
    error: Exception | None = None
    recovered: bool = False
    piece: Piece = (0, 0, 0)
    broke: str = ""
    fits: int = 0
    owners: list[int] = field(default_factory=list)
    part: Part | None = None


def pieces_of(order: int, step: StepSamples, shares: Iterable[Share], most: int) -> list[Piece]:
    """Returns the samples of a rank's micro-batches in a step, in the order in which they run.

    ``order`` is what the order of samples derives from, see `Position.order`. Without any share of the step, and in an
    empty micro-batch, the rank runs on a few samples that do not count, and on no more than ``most``, which fit.
    """
    spare = (order, step.start, min(step.count, SPARE_SAMPLES, most))
    pieces: list[Piece] = []
    for share in shares:
        starts = accumulate(share.micro_batches, initial=step.start + share.start)
        own = zip(starts, share.micro_batches, strict=False)
        pieces += [(order, start, size) if size else spare for start, size in own]
    return pieces or [spare]


def parts_of(shares: Mapping[int, Share]) -> list[Part]:
    """Returns to which virtual rank each of these micro-batches belongs; ``shares`` are those of a rank's virtual
    ranks.
    """
    return [
        Part(virtual_rank, share.samples, number == 0, number == len(share.micro_batches) - 1)
        for virtual_rank, share in shares.items()
        for number in range(len(share.micro_batches))
    ]
