"""How often in a row a job began anew from its newest checkpoint without getting further than the time before."""

from __future__ import annotations

from dataclasses import dataclass

MOST_FALLS = 3  # at the same place: then it would go on like that for ever


@dataclass(frozen=True, slots=True)
class Fallen:
    """What is known of the times before.

    Attributes:
        step: The furthest step that the job had done when it fell; -1 if it never did.
        times: How often it fell without having done more than that.
    """

    step: int = -1
    times: int = 0

    def once_more(self, step: int) -> Fallen:
        """Returns what is known after a job has fallen that had done ``step`` steps."""
        return Fallen(step, 1) if step > self.step else Fallen(self.step, self.times + 1)

    @property
    def too_often(self) -> bool:
        """Whether the job is not to begin anew any more."""
        return self.times >= MOST_FALLS
