"""Decides after a recovery what each rank has to do: who is ahead, and who takes what from it.

All ranks do the same operations together, one after the other: the reductions of steps, sums over ranks, the end. When
one of them breaks off, some ranks may have completed it and others not, so that two ranks are at most one operation
apart. Invariant: a rank that is ahead never goes back, unless nothing has come of its operation yet; one that is behind
does what makes it the same as those ahead; whoever has no state, or a torn one, takes all of it from one that has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class At(StrEnum):
    """The kind of operation that a rank is in."""

    STEP = "step"
    """The reduction of a step."""
    SUMS = "sums"
    """A sum over ranks that the script asks for."""
    END = "end"
    """The end of the training, which all ranks confirm."""


class NextAction(StrEnum):
    """The next action of a rank."""

    AGAIN = "again"
    """Its operation once more."""
    ADOPT = "adopt"
    """It counts its step as reduced: what came of it is in the state that it takes."""
    RESULT = "result"
    """It takes the result of its sum."""
    STOPPED = "stopped"
    """It learns that the training was stopped."""
    LEFT = "left"
    """It learns that all scripts have left the loop."""
    DROP = "drop"
    """It gives its step up again, of which nothing has come yet."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The progress of a rank.

    Attributes:
        at: The operation that broke off.
        operations: How many it has completed; -1 if it has no state of this job yet.
        step: Optimizer steps done.
        torn: Whether its state is a mixture, since a peer was lost while it sent it.
        in_body: Whether its script has the reduced gradient, and has not returned to the loader.
        acted: How often optimizers, schedulers and scalers acted since the last reduction, by name.
        outcome: What came of the last reduction: `NextAction.AGAIN` (a step), `STOPPED` or `LEFT`.
        loss: Of the last step that was reduced.
        result: Of the last sum, if that was the last operation.
        lost: Optimizers whose gradients this step, done again, does not make again.
        start: The epoch, and the step in it, with which its script has a new job start; None for the beginning.
    """

    at: str = At.STEP
    operations: int = -1
    step: int = 0
    torn: bool = False
    in_body: bool = False
    acted: Mapping[str, int] = field(default_factory=dict)
    outcome: str = NextAction.AGAIN
    loss: float = float("nan")
    result: Any = None
    lost: Sequence[int] = ()
    start: Sequence[int] | None = None

    @property
    def intact(self) -> bool:
        """Whether a peer can take its state."""
        return self.operations >= 0 and not self.torn


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The plan by which a rank continues; ``takes`` tells whether it takes the state of the rank ``source``."""

    todo: NextAction
    source: int
    takes: bool


def find_way(standings: Sequence[RankStatus], rank: int) -> RecoveryPlan:
    """Returns how a rank goes on, by the progress of all ranks in rank order.

    Raises:
        LookupError: If ranks have worked on the state, and none of them has it whole.
    """
    me = standings[rank]
    source = _source(standings)
    ahead = standings[source]
    if me.operations < 0 or ahead.operations < 0:
        return RecoveryPlan(NextAction.AGAIN, source, rank != source)
    behind = [one for one in standings if 0 <= one.operations < ahead.operations]
    dropped = bool(behind) and behind[0].at == At.STEP and ahead.outcome == NextAction.AGAIN and _unused(ahead)
    if me.operations == ahead.operations:
        return RecoveryPlan(NextAction.DROP if dropped else NextAction.AGAIN, source, me.torn)
    if me.at == At.SUMS and ahead.result is not None:
        return RecoveryPlan(NextAction.RESULT, source, me.torn)
    if me.at != At.STEP or dropped:
        return RecoveryPlan(NextAction.AGAIN, source, me.torn)
    if ahead.outcome != NextAction.AGAIN:
        return RecoveryPlan(NextAction(ahead.outcome), source, me.torn)
    same_step = ahead.step == me.step and not ahead.in_body  # the next of several reductions of one step
    return RecoveryPlan(NextAction.AGAIN if same_step else NextAction.ADOPT, source, True)


def _source(standings: Sequence[RankStatus]) -> int:
    """Returns the most senior of the most advanced ranks."""
    intact = [rank for rank, one in enumerate(standings) if one.intact]
    if not intact:
        if any(one.operations >= 0 for one in standings):
            raise LookupError("every rank that had the state of the training was taking it from one that was lost")
        return 0
    return max(intact, key=lambda rank: (standings[rank].operations, -rank))


def _unused(ahead: RankStatus) -> bool:
    """Whether a rank has a reduced gradient with which nothing was done yet."""
    return ahead.at == At.SUMS and ahead.in_body and not ahead.acted


def compare_starts(standings: Sequence[RankStatus]) -> None:
    """Refuses ranks of a new job that start at different positions.

    Raises:
        RuntimeError: That names the position of each rank.
    """
    starts = [None if one.start is None else tuple(one.start) for one in standings]
    if any(one.operations >= 0 for one in standings) or len(set(starts)) == 1:
        return
    where = ", ".join(
        f"rank {rank}: {'no job.start_at' if start is None else f'job.start_at({start[0]}, {start[1]})'}"
        for rank, start in enumerate(starts)
    )
    raise RuntimeError(f"ranks start at different positions ({where}); every rank must load the same file")
