"""Decides when a job follows its hints: it shrinks at once, and grows after a quiet period.

Invariants: what is wanted below the target is the target at once. Growth waits for ``grow_after`` since the last
shrink, notice or loss, and never since the start or since the hint's rise; a notice counts so on one machine alone,
since in a cluster a node with a notice is replaced at once. A number that is raised lifts the wait after a
notice, and never that after a shrink; a document that is written again with the same numbers lifts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Debounce:
    """The last shrink or notice of the job. Times are monotonic seconds, None if there was none.

    Attributes:
        shrunk_at: When a hint took something.
        noticed_at: When a notice did, or a loss in answer to a hint or notice, and no number was raised since then.
        allowed: The smallest number of GPUs that was allowed since then.
    """

    shrunk_at: float | None = None
    noticed_at: float | None = None
    allowed: int | None = None

    def note_shrink(self, now: float) -> Debounce:
        """Records a shrink by a hint."""
        return replace(self, shrunk_at=now)

    def note_notice(self, now: float, allowed: int | None) -> Debounce:
        """A notice, or a loss in answer to a hint or notice, took something.

        Args:
            now: Monotonic seconds.
            allowed: GPUs that the hints allow now, which a raised number has to exceed; None without any.
        """
        return replace(self, noticed_at=now, allowed=allowed)

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
        if wanted < current:
            return self._remember(allowed).note_shrink(now), wanted, None
        if wanted == current:
            return self._remember(allowed), wanted, None
        after = self._after_raise(allowed)
        waits = [since + grow_after for since in (after.shrunk_at, after.noticed_at) if since is not None]
        if waits and now < max(waits):
            return after, current, max(waits)
        return after, wanted, None

    def _remember(self, allowed: int | None) -> Debounce:
        """Keeps the smallest number, from which a later one is a rise."""
        if self.noticed_at is None or self.allowed is None or allowed is None or allowed >= self.allowed:
            return self
        return replace(self, allowed=allowed)

    def _after_raise(self, allowed: int | None) -> Debounce:
        if self.noticed_at is None or allowed is None or self.allowed is None or allowed <= self.allowed:
            return self._remember(allowed)
        return replace(self, noticed_at=None)
