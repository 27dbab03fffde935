"""What came of the last operation of all ranks, and what has acted since: what a rank needs that lost the operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from elastic_launcher.torch.membership.reconcile import NextAction

MOST_ACTS = 64  # that are compared after a reduction


class Turn(Enum):
    """Whether what a script calls takes effect."""

    ACTS = auto()
    TAKEN = auto()
    """A peer has done it, and this rank has what came of it."""
    IDLES = auto()
    """The global batch is not complete, or the step has ended at the peer."""


@dataclass
class Latest:
    """What came of the last operation of all ranks, for one of them that lost it.

    Attributes:
        outcome: Of the last reduction: a step, or the end of the training or of the loop (see `reconcile.NextAction`).
        result: Of the last sum over ranks, if nothing was reduced since.
        acted: How often optimizers, schedulers and scalers acted on the state since the last reduction, by name.
        taken: How often they have still to do nothing, since what came of it was taken over from a peer.
        ended: Whether nothing more acts than what is taken: that peer had ended the step, or begun its next reduction.
        missed: The `backward` call of this step of which the reduction was taken over, and the script has still to see
            that, where the step is done again; else None.
        order: What the script has called that acts, since a reduction in which this rank took part; None where it did
            not.
    """

    outcome: str = NextAction.AGAIN
    result: Any = None
    acted: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    missed: int | None = None
    order: list[str] | None = None

    def note_call(self, name: str) -> None:
        """Notes what the script has called that acts."""
        if self.order is not None and len(self.order) < MOST_ACTS:
            self.order.append(name)

    def note_act(self, name: str) -> Turn:
        """Counts what acts, unless a peer has done it for this rank."""
        if self.taken.get(name):
            self.taken[name] -= 1
            return Turn.TAKEN
        self.acted[name] = self.acted.get(name, 0) + 1
        return Turn.ACTS

    def calls_in_words(self) -> str:
        """Returns what has acted since the last reduction, in order, the same on all ranks; "" where this one doesn't
        know.
        """
        return "" if self.order is None else ", ".join(self.order) or "nothing"
