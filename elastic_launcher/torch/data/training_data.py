"""The source of samples for the steps of a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from elastic_launcher.torch.data.micro_batches import Piece


@dataclass(eq=False)
class TrainingData:
    """A data set as the step engine sees it: how many samples it has, and what must be the same on all ranks.

    Attributes:
        name: What messages call the data set.
        epoch: The epoch in which it was made; None before the first one.
        shuffle: Whether each epoch has an order of its own.
        seed: What the order derives from.
        drop_last: Whether an epoch's incomplete last step is left out.
    """

    ahead = 0
    """How many micro-batches are loaded ahead."""

    name: str
    size: int
    _: KW_ONLY
    epoch: int | None = None
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False

    def want(self, pieces: Sequence[Piece], *, urgent: bool = False) -> None:
        """Has these micro-batches loaded ahead, in this order, and no others, where something loads ahead.

        ``urgent``: the first one is waited for already, so that all workers load it together.
        """

    def is_ready(self, pieces: Sequence[Piece]) -> bool:
        """Says whether micro-batches that were asked for are there; always where nothing loads ahead."""
        return True
