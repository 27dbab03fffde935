"""Agrees on a few numbers among the ranks inside the gradient reduction; their sum keeps their meaning.

Each rank writes its signals into the head of the tail; after the reduction every rank reads the same sums and so comes
to the same decision at the same step. All numbers are small and whole (but for the loss), hence exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

READY_SLOTS = 8  # one formation is under way at a time; eight apart they can't be taken for one another
POSITION_BITS = 8
CHECK_BITS = 16
MOST_BATCH = 2**24  # whole numbers up to here are exact in float32
_STOP, _BREAK, _SAVE, _HALT, _ELSEWHERE, _LATE, _CHECKED, _ACTED = range(READY_SLOTS, READY_SLOTS + 8)
_WEIGHT, LOSS_INDEX, _LOSS_WEIGHT, _BATCH = range(READY_SLOTS + 8, READY_SLOTS + 12)
_POSITION = READY_SLOTS + 12
_CHECK = _POSITION + POSITION_BITS
_ACTS = _CHECK + CHECK_BITS
HEAD = _ACTS + CHECK_BITS


@dataclass(frozen=True, slots=True)
class Signals:
    """The vote of one rank.

    Attributes:
        position: A number derived from the rank's position; ranks at the same step have the same.
        ready: The formation that this rank could change to after this step, or None.
        stop: The script of this rank asked for the end.
        left_loop: The script of this rank broke out of the training loop.
        save: This rank wants a checkpoint after this step.
        halt: This rank was ordered to stop after this step's checkpoint.
        check: A checksum of this rank's parameters, or 0 when none is compared in this step.
        elsewhere: This rank is in another operation, and takes part since others may be in this one.
        acts: A checksum of which optimizers, schedulers and scalers acted since the last reduction, in which order; 0
            where this rank doesn't know.
        batch_size: The global batch that this rank proposes for the steps after this one; 0 for none. Only one
            rank proposes.
    """

    position: int
    ready: int | None = None
    stop: bool = False
    left_loop: bool = False
    save: bool = False
    halt: bool = False
    check: int = 0
    elsewhere: bool = False
    acts: int = 0
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The sum of all votes; the same on each rank.

    Attributes:
        weight: Sum of the weights of the step's samples.
        loss: Weighted mean of the loss; NaN when nothing was weighed.
        formation: The formation that all ranks are ready for, or None.
        stop: How many ranks asked for the end.
        left_loop: How many ranks broke out of the loop.
        save: How many ranks want a checkpoint.
        halt: How many ranks know that the job stops.
        late: How many ranks had a gradient that came after its bucket was reduced.
        same_position: Whether all ranks stood at the same step.
        same_check: Whether all ranks' parameter checksums are equal, or some have none in this step.
        elsewhere: How many ranks are in another operation: what was reduced counts for nothing.
        same_acts: Whether the same acted on all ranks since the last reduction, or some don't know.
        batch_size: The global batch that a rank proposed for the steps after this one; 0 where none did.
    """

    weight: float
    loss: float
    formation: int | None
    stop: int
    left_loop: int
    save: int
    halt: int
    late: int
    same_position: bool
    same_check: bool
    elsewhere: int = 0
    same_acts: bool = True
    batch_size: int = 0

    @property
    def is_void(self) -> bool:
        """Whether the gradient that was reduced counts for nothing."""
        return bool(self.stop or self.left_loop or self.elsewhere)


def _signs(number: int, bits: int) -> list[float]:
    """Spells a number's low bits as +1 and -1: equal numbers add up to ±W everywhere, different ones don't."""
    return [1.0 if number >> bit & 1 else -1.0 for bit in range(bits)]


def _are_equal(signs: list[float], world_size: int) -> bool:
    """Whether all ranks have spelled the same number."""
    return all(abs(value) == world_size for value in signs)


def spell(signals: Signals, *, late: bool, weight: float, loss: float) -> list[float]:
    """Returns the ``HEAD`` numbers that a rank adds to the sum; the loss is written apart where it is a tensor.

    Args:
        signals: What the rank says.
        late: Whether a gradient of this rank missed its bucket.
        weight: This rank's weight of the step's samples.
        loss: This rank's weight times loss, or 0.
    """
    ready = [0.0] * READY_SLOTS
    if signals.ready is not None:
        ready[signals.ready % READY_SLOTS] = 1.0
    wishes = (signals.stop, signals.left_loop, signals.save, signals.halt, signals.elsewhere)
    numbers = [*map(float, (*wishes, late, signals.check != 0, signals.acts != 0)), weight, loss, weight]
    numbers.append(float(signals.batch_size))
    checks = _signs(signals.check, CHECK_BITS) + _signs(signals.acts, CHECK_BITS)
    return ready + numbers + _signs(signals.position, POSITION_BITS) + checks


def weigh(weight: float) -> list[float]:
    """Returns the ``HEAD`` numbers of something that has a weight and no vote; its loss is written apart."""
    numbers = [0.0] * HEAD
    numbers[_WEIGHT] = numbers[_LOSS_WEIGHT] = weight
    return numbers


def read(head: list[float], signals: Signals, world_size: int) -> Agreement:
    """Reads the sums of ``HEAD`` numbers over all ranks, of which this one has said ``signals``."""
    agreed = signals.ready is not None and head[signals.ready % READY_SLOTS] == world_size
    weight = head[_LOSS_WEIGHT]
    return Agreement(
        weight=head[_WEIGHT],
        loss=head[LOSS_INDEX] / weight if weight else float("nan"),
        formation=signals.ready if agreed else None,
        stop=int(head[_STOP]),
        left_loop=int(head[_BREAK]),
        save=int(head[_SAVE]),
        halt=int(head[_HALT]),
        late=int(head[_LATE]),
        same_position=_are_equal(head[_POSITION:_CHECK], world_size),
        same_check=head[_CHECKED] < world_size or _are_equal(head[_CHECK:_ACTS], world_size),
        elsewhere=int(head[_ELSEWHERE]),
        same_acts=head[_ACTED] < world_size or _are_equal(head[_ACTS:HEAD], world_size),
        batch_size=int(head[_BATCH]),
    )
