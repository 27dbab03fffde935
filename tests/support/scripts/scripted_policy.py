"""A policy that decides by a list, in place of one that measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import elastic_launcher.torch as elastic


@dataclass(frozen=True)
class Listed:
    """A decision of the list."""

    new: int
    noise_scale: float
    reason: str


class ScriptedPolicy:
    """Proposes a global batch in some steps, by the step that runs.

    Attributes:
        asked: What it was asked: step, batch and world size.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self.asked: list[tuple[int, int, int]] = []

    def note_step(self, batch_size: int, samples: int, world_size: int) -> None:
        """Does nothing: the list knows."""

    def propose(self, step: int, batch_size: int, world_size: int) -> Listed | None:
        """Returns what the list says for the step."""
        self.asked.append((step, batch_size, world_size))
        if step not in self._sizes:
            return None
        return Listed(self._sizes[step], 2.0 * batch_size, f"as listed for step {step}")


def hold_gains(job: elastic.Job, first: int, worth: float) -> None:
    """Has each sample of a larger batch than the first one be worth so much, in place of what is measured."""
    noise = job._session.measure_noise()

    def hold(step: int, batch_size: int) -> None:
        noise.gains = {**noise.gains, step: (max(1.0, worth * batch_size / first),) * 2}

    noise.hold_gains = hold  # type: ignore[method-assign]
