"""When a job follows its hints: it shrinks at once, and grows when nothing was taken from it for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Debounce:
    """What was taken from the job last.

    Attributes:
        since: When, in monotonic seconds; None if nothing was.
        by_notice: Whether it was a notice: a raised number lifts the wait after one.
        allowed: What the hints allowed then.
    """

    since: float | None = None
    by_notice: bool = False
    allowed: int | None = None

    def note_shrink(self, now: float, allowed: int | None) -> Debounce:
        """A hint took something."""
        return replace(self, since=now, by_notice=False, allowed=allowed)

    def note_notice(self, now: float, allowed: int | None) -> Debounce:
        """A notice, or a loss in answer to one, took something."""
        return replace(self, since=now, by_notice=True, allowed=allowed)

    def decide(
        self, wanted: int, current: int, now: float, *, grow_after: float, allowed: int | None
    ) -> tuple[Debounce, int, float | None]:
        """Returns the target now.

        Args:
            wanted: Nodes that the hints give.
            current: The target so far.
            now: Monotonic seconds.
            grow_after: Seconds that growth waits.
            allowed: GPUs that the hints allow.

        Returns:
            The state from now on, the target, and when to ask again (None: when something changes).
        """
        if wanted <= current:
            return (self.note_shrink(now, allowed) if wanted < current else self), wanted, None
        if self.since is None or now - self.since >= grow_after:
            return self, wanted, None
        raised = self.by_notice and allowed is not None and self.allowed is not None and allowed > self.allowed
        if raised:
            return replace(self, since=None), wanted, None
        return self, current, self.since + grow_after
