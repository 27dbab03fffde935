"""Which part of a step's samples each rank does, and in micro-batches of how many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from torch import nn

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.batch import Share, share, share_of_node
from elastic_launcher.torch.membership.membership import Division, Membership
from elastic_launcher.virtual_ranks import held


class Adaptive(Protocol):
    """An adaptive batch."""

    @property
    def bounds(self) -> Bounds:
        """The bounds of the global batch and of micro-batches."""


class Node(Protocol):
    """Ranks that share one model."""

    @property
    def size(self) -> int:
        """How many there are."""


class Training(Protocol):
    """The part of a job on which shares depend; see `Session`."""

    max_batch_per_gpu: int
    virtual_ranks: int

    @property
    def autoscaling(self) -> Adaptive | None:
        """The adaptive batch, if there is one."""

    @property
    def shards(self) -> Node | None:
        """The ranks of this node, where they share one model."""

    @property
    def global_batch_size(self) -> int:
        """Samples of the next step, over all ranks."""

    def need_membership(self, what: str) -> Membership:
        """Returns the membership, or says why there is none yet."""


@dataclass
class Shares:
    """Divides steps among ranks and micro-batches.

    Attributes:
        finds_limit: Whether the rehearsal is to find how large micro-batches may be.
        known_limit: The largest micro-batch that fits into this rank's memory, where one did not; None otherwise.
        least_world_size: Fewest ranks for which the job asks; 0 where there are as many as there are now.
        normalizes: A part of a model that takes statistics of a micro-batch, if there is one.
        norms: Parts of models that were looked at for whether they take statistics of a micro-batch.
        looked_at: After how many registrations of modules.
    """

    _session: Training
    finds_limit: bool = False
    known_limit: int | None = None
    least_world_size: int = 0
    normalizes: str | None = None
    norms: WeakSet[nn.Module] = field(default_factory=WeakSet)
    looked_at: int = 0

    @property
    def max_micro_batch(self) -> int:
        """Most samples of this rank's micro-batches in training; other ranks may have another limit."""
        return self.limited(self._asked_micro_batch)

    def limited(self, samples: int) -> int:
        """Returns a largest micro-batch, or what is known to fit into this rank's memory if that is less."""
        return samples if self.known_limit is None else min(samples, self.known_limit)

    @property
    def _asked_micro_batch(self) -> int:
        """Most samples of a micro-batch by the script and the bounds of the adaptive batch, the same on all ranks."""
        most, autoscaling = self._session.max_batch_per_gpu, self._session.autoscaling
        return most if autoscaling is None else min(most, autoscaling.bounds.max_micro_batch)

    @property
    def least_micro_batch(self) -> int:
        """How small this rank's largest micro-batch may become: with 3, a share is never divided into single samples,
        which batch norm can't take.
        """
        return 1 if self.normalizes is None else min(3, self._asked_micro_batch)

    def of(self, count: int, division: Division) -> dict[int, Share]:
        """Returns what a rank does of a step of so many samples: its share, or those of its virtual ranks, by number.

        Raises:
            ValueError: See `one`.
        """
        return {each.rank: self.one(count, each) for each in self.divisions(division)}

    def divisions(self, division: Division) -> list[Division]:
        """Returns as whom a rank works: as itself, or as each of its virtual ranks; as none of them if it has none."""
        virtual = self._session.virtual_ranks
        if not virtual:
            return [division]
        own = held(virtual, division.ranks, division.rank) or [virtual]
        return [Division(number, virtual) for number in own]

    def one(self, count: int, division: Division) -> Share:
        """Returns a rank's part of a step of so many samples, by its division.

        Raises:
            ValueError: If they can't be divided so that batch norm has two samples at a time.
        """
        try:
            return self.divided(count, self.max_micro_batch, division, batch_statistics=self.normalizes is not None)
        except ValueError as error:
            raise ValueError(
                f"{error}: {self.normalizes} needs two. Raise max_batch_per_gpu to 3 or more, or have an even number "
                "of samples in each step (global_batch_size, and drop_last=True for the epoch's tail)"
            ) from None

    def divided(self, count: int, most: int, division: Division, *, batch_statistics: bool = False) -> Share:
        """Returns a rank's part of so many samples, in micro-batches of at most ``most``: none for a rank beyond the
        division, and as many as its node's other ranks have where they share one model.

        Raises:
            ValueError: See `batch.share`.
        """
        ranks, rank, shards = division.ranks, division.rank, self._session.shards
        if rank >= ranks:
            return Share(count, ())
        if shards is not None and ranks % shards.size == 0:  # else one rank, which stands for all
            return share_of_node(count, most, ranks, rank, shards.size)
        return share(count, most, ranks, rank, batch_statistics=batch_statistics)

    def too_few_for_two_passes(self) -> str:
        """Returns the message for ranks that may have several micro-batches in a step; "" if they can't."""
        session = self._session
        least = self.least_world_size or session.need_membership("a step").world_size
        most = session.global_batch_size if session.autoscaling is None else session.autoscaling.bounds.max_batch_size
        pieces = self.one(most, Division(0, least)).micro_batches
        if len(pieces) < 2:
            return ""
        return (
            f"two passes in a step are exact with one micro-batch a rank, and with {least} rank{'s' * (least > 1)}, as "
            f"few as --nodes allows, a rank has {len(pieces)}. Raise max_batch_per_gpu to {sum(pieces)}, or the least "
            "number of nodes, until a rank's share fits in one"
        )
