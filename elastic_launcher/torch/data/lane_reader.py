"""Reads samples of lanes: keeps each lane open where it stands, and opens it again for what lies elsewhere.

Invariant: a sample is a function of (seed, epoch, lane, place in the lane), whoever reads it and from wherever on. It
holds for what draws from Python's, numpy's and torch's global generators when the sample is made. No sample is given
twice: one that is asked for again is read again, since whoever got it may have changed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NoReturn

from elastic_launcher import sampling
from elastic_launcher.lane_order import LaneOrder
from elastic_launcher.torch import rng
from elastic_launcher.torch.data.fetch import Collate, Fetcher
from elastic_launcher.torch.data.lanes import Lanes

FAR = 4  # steps: a lane that has fallen behind by more is closed, and one whose next sample is farther on opened there


@dataclass
class _OpenLane:
    """Attributes:
    at: Number of the next sample.
    opened: Number of the sample at which it was opened.
    block: The samples of the present block that were not given yet, and their numbers, by their shuffled places.
    """

    epoch: int
    at: int
    samples: Iterator[Any]
    opened: int
    block: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def close(self) -> None:
        """Lets a generator end what it holds."""
        close = getattr(self.samples, "close", None)
        if callable(close):
            close()


class LaneReader:
    """Gives samples of lanes by their positions in an epoch; one process's, which no two threads use at once.

    Args:
        dataset: The lanes.
        order: What the steps take of them.
        seed: What random numbers and the shuffling derive from.
        shuffle: Whether each lane's samples are shuffled in blocks.
    """

    divisible = False

    def __init__(self, dataset: Lanes, order: LaneOrder, seed: int, shuffle: bool) -> None:
        self.dataset = dataset
        self.seed = seed
        self._order = order
        self._shuffle = shuffle
        self._firsts = list(accumulate(dataset.lengths, initial=0))
        self._far = [FAR * -(-order.batch * length // order.total) for length in dataset.lengths]
        self._open: dict[int, _OpenLane] = {}

    def samples(
        self, epoch: int, positions: Sequence[int], wanted: Callable[[], bool] = lambda: True
    ) -> list[Any] | None:
        """Returns the samples at rising positions.

        It leaves the process's generators as the last sample left them. Before each sample it asks whether they are
        still ``wanted``; once they are not, None is returned.
        """
        self._close_left(epoch, positions[0] // self._order.batch)
        start = positions[0]
        lanes, places = self._order.places(start, positions[-1] + 1)
        found = list[Any]()
        for position in positions:
            if not wanted():
                return None
            found.append(self._sample(epoch, int(lanes[position - start]), int(places[position - start])))
        return found

    load = samples  # what a worker loads of a batch is its samples: the rank makes the batch

    @staticmethod
    def join(samples: list[Any]) -> list[Any]:
        """Returns samples as they are."""
        return samples

    def _close_left(self, epoch: int, step: int) -> None:
        """Closes lanes that others have taken over, or of another epoch."""
        before = self._order.before(step)
        for lane, one in list(self._open.items()):
            if one.epoch != epoch or before[lane] - one.at > self._far[lane]:
                self._close(lane)

    def _sample(self, epoch: int, lane: int, place: int) -> Any:
        number, sample = self._shuffled(epoch, lane, place) if self._shuffle else self._forward(epoch, lane, place)
        if self.dataset.decode is None:
            return sample
        self._seed_for(epoch, lane, number)
        try:
            return self.dataset.decode(sample)
        except Exception as error:
            error.add_note(f"in decode, of lane {lane}, sample {number} of epoch {epoch}")
            raise

    def _shuffled(self, epoch: int, lane: int, place: int) -> tuple[int, Any]:
        found = self._open.get(lane)
        if found is None or found.epoch != epoch or place not in found.block:
            start, stop = self._bounds(lane, place)
            read = [self._forward(epoch, lane, number) for number in range(start, stop)]
            order = sampling.indices(stop - start, rng.derive(self.seed, lane, start), epoch, 0, stop - start)
            found = self._open[lane]
            found.block = {start + at: read[number] for at, number in enumerate(order.tolist())}
        return found.block.pop(place)

    def _bounds(self, lane: int, place: int) -> tuple[int, int]:
        """Returns the block of a place; lanes' first blocks have different lengths, so that not all end in one step."""
        block, length = self.dataset.block, self.dataset.lengths[lane]
        shift = lane * block // len(self.dataset.lengths)
        number = (place + shift) // block
        return max(0, number * block - shift), min(length, (number + 1) * block - shift)

    def _forward(self, epoch: int, lane: int, place: int) -> tuple[int, Any]:
        """Reads on to a sample, and returns its number and what the lane gives; what lies between is dropped."""
        found = self._open.get(lane)
        if found is None or found.epoch != epoch or not found.at <= place <= found.at + self._far[lane]:
            found = self._open_at(epoch, lane, place)
        try:
            while found.at <= place:
                if self.dataset.decode is None:
                    self._seed_for(epoch, lane, found.at)
                sample = next(found.samples)
                found.at += 1
            if self.dataset.exact and found.at == self.dataset.lengths[lane]:
                self._check_end(lane, found)
        except StopIteration:
            self._end_early(lane, found)
        except Exception as error:
            self._close(lane)
            error.add_note(f"in lane {lane}, at sample {found.at} of epoch {epoch}; opened at {found.opened}")
            raise
        return place, sample

    def _seed_for(self, epoch: int, lane: int, number: int) -> None:
        rng.seed_all(rng.sample_seed(self.seed, epoch, self._firsts[lane] + number), rng.current_device())

    def _open_at(self, epoch: int, lane: int, place: int) -> _OpenLane:
        self._close(lane)
        rng.seed_all(rng.sample_seed(self.seed, epoch, -1 - lane), rng.current_device())
        try:
            samples = self.dataset.open(lane, epoch, place)
        except Exception as error:
            error.add_note(f"in open({lane}, {epoch}, {place}): lane, epoch, first sample")
            raise
        try:
            found = _OpenLane(epoch, place, iter(samples), place)
        except TypeError:
            raise TypeError(
                f"open({lane}, {epoch}, {place}) returned {type(samples).__name__}; it must return an iterable of the "
                f"samples of lane {lane} from number {place} on"
            ) from None
        self._open[lane] = found
        return found

    def _close(self, lane: int) -> None:
        if (found := self._open.pop(lane, None)) is not None:
            found.close()

    def _check_end(self, lane: int, found: _OpenLane) -> None:
        with contextlib.suppress(StopIteration):
            next(found.samples)
            length = self.dataset.lengths[lane]
            raise ValueError(
                f"lane {lane} has more than the {length} samples that lengths says; correct lengths[{lane}], or give "
                "lengths=N, if an epoch takes N samples of each lane, however many it has"
            )

    def _end_early(self, lane: int, found: _OpenLane) -> NoReturn:
        self._close(lane)
        call, length = f"open({lane}, {found.epoch}, {found.opened})", self.dataset.lengths[lane]
        given = found.at - found.opened
        raise ValueError(
            f"lane {lane} ended early: {call} gave {given} samples, and lengths says that the lane has {length} "
            f"({length - found.opened} from {found.opened} on). Correct lengths, or have open() give the same samples "
            "each time that it is called for a lane and an epoch"
        )


@dataclass(frozen=True)
class LaneFetcher:
    """Makes batches of lanes' samples in this process.

    Attributes:
        collate_fn: Makes a batch of a list of samples; None for torch's default. Random numbers that it draws derive
            from the position of the last sample.
    """

    reader: LaneReader
    collate_fn: Collate | None

    def fetch(self, epoch: int, positions: Sequence[int]) -> Any:
        """Returns the batch of these samples, in order; the process's own random generators stay as they were."""
        with rng.preserve():
            return self.join(epoch, positions, self.reader.samples(epoch, positions) or [])

    def join(self, epoch: int, positions: Sequence[int], samples: list[Any]) -> Any:
        """Makes a batch of samples that were read; it may leave the random generators elsewhere."""
        if self.collate_fn is None:
            return Fetcher.join(samples)
        rng.seed_all(rng.sample_seed(self.reader.seed, epoch, positions[-1]), rng.current_device())
        return self.collate_fn(samples)
