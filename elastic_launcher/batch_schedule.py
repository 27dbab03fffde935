"""Which global batch size holds from which step on, and which samples of an epoch each step takes.

Invariant: the steps of a pass over a data set take its samples in order and each once, with any schedule.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from elastic_launcher.batch import whole_number


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The samples of one step, over all ranks.

    Attributes:
        start: Position of the first one in the epoch's order.
        count: How many there are: the last step of an epoch may hold fewer than the global batch.
    """

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """The global batch sizes of a training.

    Attributes:
        entries: First step and global batch size, by rising steps. Steps count over the whole training; the first entry
            begins with step 0.

    Raises:
        ValueError: If a number is not a whole one, or the steps do not rise from 0.
    """

    entries: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        plain = [
            (whole_number("step", step, 0), whole_number("global_batch_size", size)) for step, size in self.entries
        ]
        object.__setattr__(self, "entries", tuple(plain))
        steps = [step for step, _ in plain]
        if steps[:1] != [0] or any(one >= other for one, other in pairwise(steps)):
            raise ValueError(f"the batch schedule has entries from the steps {steps}; they must rise from 0")

    @staticmethod
    def fixed(global_batch_size: int) -> BatchSchedule:
        """Returns the schedule of a global batch that stays the same."""
        return BatchSchedule(((0, global_batch_size),))

    def with_entry(self, step: int, global_batch_size: int) -> BatchSchedule:
        """Returns this schedule with another global batch from a step on; what was to come from there on is dropped.

        Raises:
            ValueError: If a number is not a whole one.
        """
        return BatchSchedule((*(entry for entry in self.entries if entry[0] < step), (step, global_batch_size)))

    def until(self, step: int) -> BatchSchedule:
        """Returns the entries that have begun with a step, 0 or later, or before it."""
        if self.entries[-1][0] <= step:
            return self
        return BatchSchedule(tuple(entry for entry in self.entries if entry[0] <= step))

    def batch_size(self, step: int) -> int:
        """Returns the global batch size of a step."""
        return next(self._runs(step))[0]

    def first_step(self, step: int) -> int:
        """Returns the first step of the entry that a step follows."""
        return max(first for first, _ in self.entries if first <= step)

    def samples(self, first: int, stop: int) -> int:
        """Returns how many samples full steps take, from ``first`` (below 0, the first entry holds) up to ``stop``."""
        total, left = 0, stop - first
        for size, steps in self._runs(first):
            taken = min(left, steps)
            total, left = total + taken * size, left - taken
            if not left:
                break
        return total

    def whole_steps(self, first: int, samples: int) -> int:
        """Returns how many full steps so many samples make, from the step ``first`` on."""
        whole = 0
        for size, steps in self._runs(first):
            taken = min(samples // size, steps)
            whole, samples = whole + taken, samples - taken * size
            if taken < steps:
                break
        return whole

    def _runs(self, first: int) -> Iterator[tuple[int, int]]:
        """Yields the batch sizes from a step on, and for how many steps each holds."""
        entry = max(0, bisect_right(self.entries, first, key=lambda one: one[0]) - 1)
        for (_, size), (end, _) in pairwise([*self.entries[entry:], (sys.maxsize, 0)]):
            yield size, end - first
            first = end


@dataclass(frozen=True)
class DataPass:
    """One pass over a data set in steps.

    Attributes:
        first_step: The step of the training with which the pass begins; below 0 where it was begun with a larger batch.
        drop_last: Whether an incomplete last step is left out.

    Raises:
        ValueError: If the size is not a whole number of 1 or more.
    """

    schedule: BatchSchedule
    dataset_size: int
    first_step: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_size", whole_number("dataset_size", self.dataset_size))

    @cached_property
    def steps(self) -> int:
        """Optimizer steps of the pass."""
        whole = self.schedule.whole_steps(self.first_step, self.dataset_size)
        return whole + (not self.drop_last and self._start(whole) < self.dataset_size)

    def samples(self, step_in_pass: int) -> StepSamples:
        """Returns which samples a step takes, counted from 0 in the pass.

        Raises:
            ValueError: If it is not a whole number, or the pass has no such step.
        """
        step_in_pass = whole_number("step_in_epoch", step_in_pass, 0)
        if step_in_pass >= self.steps:
            raise ValueError(f"step_in_epoch is {step_in_pass}; the epoch has {self.steps} steps, counted from 0")
        start = self._start(step_in_pass)
        size = self.schedule.batch_size(self.first_step + step_in_pass)
        return StepSamples(start, min(size, self.dataset_size - start))

    def counts(self) -> list[int]:
        """Returns how many samples its steps take: those of the first step, of the last, and where that changes.

        Raises:
            ValueError: If the pass has no step.
        """
        if not self.steps:
            raise ValueError(
                f"the data set has {self.dataset_size} samples, fewer than one global batch of "
                f"{self.schedule.batch_size(self.first_step)}, and drop_last leaves none of it"
            )
        changes = (step - self.first_step for step, _ in self.schedule.entries)
        steps = sorted({0, self.steps - 1, *(step for step in changes if 0 < step < self.steps)})
        return [self.samples(step).count for step in steps]

    def rest(self, step_in_pass: int) -> int:
        """Returns how many samples the steps take from one of them on, counted from 0 in the pass."""
        end = min(self._start(self.steps), self.dataset_size)
        return end - min(self._start(step_in_pass), end) if self.steps else 0

    def following(self) -> DataPass:
        """Returns the pass after this one."""
        return replace(self, first_step=self.first_step + self.steps)

    def _start(self, step_in_pass: int) -> int:
        return self.schedule.samples(self.first_step, self.first_step + step_in_pass)
