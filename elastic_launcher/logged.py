"""Chooses the values of ``job.log`` that count when several ranks log the same names at the same step.

Invariant: for each name and step it is the lowest rank's value, in any order of the ranks' reports; of one
rank it is the last. A value that was taken before a lower rank's arrived is replaced by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RECENT_STEPS = 64  # per name; far more than reports of ranks in one group are apart


class Entry(NamedTuple):
    """A value and the rank that logged it."""

    rank: int
    value: Any


@dataclass(frozen=True, slots=True)
class Logged:
    """The values logged at the latest steps: for each name, its entries by step."""

    steps: Mapping[str, Mapping[int, Entry]] = field(default_factory=dict)

    def add(self, step: int, rank: int, values: Mapping[str, Any]) -> tuple[Logged, dict[str, Any]]:
        """Takes what a rank logged; returns the state after it, and those of the values that count for now."""
        steps, taken = dict(self.steps), {}
        for name, value in values.items():
            entries = steps.get(name, {})
            if step in entries and entries[step].rank < rank:
                continue
            taken[name] = value
            recent = sorted({*entries, step})[-RECENT_STEPS:]
            steps[name] = {one: Entry(rank, value) if one == step else entries[one] for one in recent}
        return Logged(steps), taken

    def last(self) -> dict[str, Any]:
        """Returns the value of each name at the last step at which it was logged."""
        return {name: entries[max(entries)].value for name, entries in self.steps.items()}
