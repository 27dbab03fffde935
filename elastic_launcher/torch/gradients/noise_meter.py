"""Measures the gradient noise inside the reduction of a step; see `adaptive.noise` for what is estimated from what.

The tail of the reduction carries, for each parameter group, the ranks' own square norms; a rank alone takes that of its
first micro-batch, or the gradient of the step before. Both are of the gradient as the optimizer sees it: under Adam,
divided by the root of its second moment. The square norm of the reduced gradient could differ between machines in its
last bits, so that of rank 0 rides along in the next reduction, and all ranks add the same numbers to their averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from elastic_launcher.adaptive.goodput import GradientNoise, gain
from elastic_launcher.adaptive.noise import Estimate, NoiseAverages, estimate, memory
from elastic_launcher.adaptive.progress import PhaseProgress, Progress
from elastic_launcher.torch.gradients.buckets import Bucket, Last, Layout, Slot
from elastic_launcher.torch.gradients.square_norms import SquareNorms

EVERY = 16  # steps from one measurement to the next: the averages reach over a thousand, and each costs two passes
EARLY = 16  # the first steps of a batch, of which each is measured, so that the next decision need not wait
MOST_GAINS = 64  # entries of the batch schedule whose gains are known
FIXED = 2  # numbers in the tail that are not of a group: parts, samples

Numbers = torch.Tensor | Sequence[float]


@dataclass(frozen=True)
class Pending:
    """A measured step whose reduced gradient's square norms the ranks have not agreed on yet.

    Attributes:
        groups: The parameter groups that it measures.
        small: S of each group of the job.
        mean: |ḡ|² of each group, as this rank has it.
        parts: See `adaptive.noise.estimate`.
        samples: See there.
    """

    groups: tuple[int, ...]
    small: Numbers
    mean: Numbers
    parts: float
    samples: float

    def estimates(self, mean: Sequence[float]) -> dict[int, Estimate]:
        """Returns the estimates with the square norms that hold, of the groups that had a gradient."""
        small = _floats(self.small)
        return {
            group: estimate(small[group], mean[group], parts=self.parts, samples=self.samples)
            for group in self.groups
            if small[group] or mean[group]
        }


@dataclass(frozen=True)
class Moment:
    """What is known after a reduction."""

    averages: NoiseAverages = field(default_factory=NoiseAverages)
    pending: Pending | None = None

    def resized(self, count: int) -> Moment:
        """Returns the same for so many groups."""
        pending = self.pending if self.pending is not None and len(self.pending.small) == count else None
        return Moment(self.averages.resized(count), pending)

    def rearranged(self, came_from: Sequence[int | None]) -> Moment:
        """Returns the same for groups that had other numbers before; None is a new group's."""
        same = list(came_from) == list(range(len(self.averages.groups)))
        return self if same else Moment(self.averages.rearranged(came_from))


class NoiseMeter:
    """The gradient noise of one job, measured by one process.

    Args:
        optimizers: The prepared ones; their groups are numbered through.
        scalers: The prepared gradient scalers.
        base_batch_size: Returns the global batch that counts as one step in the averages.

    Attributes:
        step: The step that runs.
        gains: By the first step of an entry of the batch schedule, the gain of its batch when the entry was decided:
            over all parameters, then of each group. Learning rates follow these, so that the model is a function of
            them.
        progress: Of the steps so far.
        phase: Of those of the last phase in which there were any.
        counted: How many steps are in both: what a peer has counted already may have come with its state.
    """

    def __init__(
        self,
        optimizers: list[Optimizer],
        scalers: list[torch.amp.GradScaler],
        base_batch_size: Callable[[], int],
    ) -> None:
        self._norms = SquareNorms(optimizers, scalers)
        self._base = base_batch_size
        self._every = EVERY
        self.step = 0
        self.gains: dict[int, tuple[float, ...]] = {}
        self.progress = Progress()
        self.phase = PhaseProgress()
        self.counted = 0
        self._now = Moment()
        self._of = -1  # the step of the reduction after which it is now
        self._before: dict[int, Moment] = {}  # each call of that step
        self._found: tuple[Moment, tuple[int, int]] | None = None
        self._claims: dict[int, int] = {}

    @property
    def averages(self) -> NoiseAverages:
        """The averages, the same on all ranks bit by bit; those of a step come in with the next reduction."""
        return self._now.averages

    @property
    def numel(self) -> int:
        """How many numbers ride along."""
        return FIXED + 2 * self._norms.count

    @property
    def is_due(self) -> bool:
        """Whether the step that runs is measured."""
        return self._measures(self.step)

    def _measures(self, step: int) -> bool:
        since = step - max((one for one in self.gains if one <= step), default=0)
        return since < EARLY or step % self._every == 0

    # -- what is measured

    def follow(self) -> bool:
        """Looks at the optimizers' groups; returns whether they have changed since the last time.

        Raises:
            TypeError: For an optimizer for which the noise scale is not known.
        """
        if not self._norms.follow():
            return False
        came_from = self._norms.came_from
        if came_from is None:  # what is known is of a peer or a checkpoint
            self._resize(self._norms.count)
            return True
        self._now = self._now.rearranged(came_from)
        self._before = {call: moment.rearranged(came_from) for call, moment in self._before.items()}
        self.gains = {step: _rearranged(held, came_from) for step, held in self.gains.items()}
        return True

    def _resize(self, count: int) -> None:
        self._now = self._now.resized(count)
        self._before = {call: moment.resized(count) for call, moment in self._before.items()}

    def groups_of(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Returns the number of each parameter's group (see `SquareNorms.groups_of`)."""
        return self._norms.groups_of(parameters)

    def claim(self, slot: Slot) -> None:
        """Notes that a `backward` call gives its groups their gradient.

        Raises:
            RuntimeError: If another call of the step does so too.
        """
        for group in slot.layout.groups:
            if self._claims.setdefault(group, slot.call) != slot.call:
                raise RuntimeError(
                    "job.backward was called twice in a step for the same parameters. The gradient noise is measured "
                    "on the whole gradient of a step: call job.backward once with the sum of the losses, or without "
                    "autoscaling"
                )

    def forget(self) -> None:
        """Drops what was measured of a step that begins again."""
        self._found = None
        self._claims.clear()
        self._norms.forget()

    # -- one step, in the order of the calls

    def keep_first(self, slot: Slot, weight: float) -> None:
        """Measures the first micro-batch of several, on a rank that is alone."""
        if self.is_due:
            for bucket in slot.layout.buckets:
                self.measure(bucket)
            slot.first = (self._norms.take(slot.layout), weight)

    def measure(self, bucket: Bucket) -> None:
        """Measures what is in a bucket: this rank's part before it is reduced, or the whole gradient after."""
        self._norms.add(bucket)

    def write(self, slot: Slot, count: int, *, alone: bool, speaks: bool) -> None:
        """Writes what this rank adds to the tail, which holds zeros.

        Args:
            slot: What is reduced.
            count: Samples of the step.
            alone: Whether there is no other rank.
            speaks: Whether it is this rank's measurement of the last reduced gradient that counts.
        """
        if self.step == self._of and slot.call in self._before:
            self._now = self._before[slot.call]  # the step is done again, from this call or an earlier one on
        if alone:
            return
        slot.last = None  # needed by a rank alone
        place, groups = slot.layout.noise, self._norms.count
        if speaks and self._now.pending is not None:
            place[FIXED + groups :].copy_(torch.as_tensor(self._now.pending.mean, dtype=place.dtype))
        if self.is_due and slot.weight:
            place[FIXED : FIXED + groups].copy_(self._norms.take(slot.layout)).mul_(count / slot.weight)
            place[0], place[1] = 1.0, slot.samples

    def read(self, slot: Slot, numbers: Sequence[float], *, count: int, weight: float, late: bool, alone: bool) -> None:
        """Reads the sums of all ranks and measures the reduced gradient; `commit` makes it count.

        Args:
            slot: What was reduced.
            numbers: What came of `write`.
            count: Samples of the step.
            weight: What all ranks' samples weigh.
            late: Whether gradients came after their bucket had been measured.
            alone: Whether there is no other rank.
        """
        groups, pending = self._norms.count, self._now.pending
        averages = self._now.averages
        if pending is not None:
            mean = _floats(pending.mean) if alone else numbers[FIXED + groups :]
            kept = memory(pending.samples * self._every, self._base())
            averages = averages.updated(pending.estimates(mean), kept)
        new = None
        if weight and not late:
            if alone:
                new = self._measure_alone(slot, count) if self.is_due else None
                self._keep_last(slot)
            elif self.is_due and numbers[0] > 1:
                small = [number * count / weight for number in numbers[FIXED : FIXED + groups]]
                new = Pending(slot.layout.groups, small, self._measure_all(slot.layout), numbers[0], numbers[1])
        self._found = Moment(averages, new), (self.step, slot.call)

    def commit(self) -> None:
        """Counts what `read` found: the reduction is done, on this rank and so in the state that peers may take."""
        if self._found is None:
            return
        (found, (step, call)), self._found = self._found, None
        earlier = self._before if step == self._of else {}
        self._before = {**{one: moment for one, moment in earlier.items() if one < call}, call: self._now}
        self._now, self._of = found, step

    def _measure_all(self, layout: Layout) -> torch.Tensor:
        for bucket in layout.buckets:
            self.measure(bucket)
        return self._norms.take(layout)

    def _measure_alone(self, slot: Slot, count: int) -> Pending | None:
        """Measures the gradient of a rank that is alone against its first micro-batch, or else the step before."""
        layout = slot.layout
        if slot.first is not None:
            small, weight = slot.first
            if slot.weight <= weight:  # the others were left out
                return None
            whole = small * (count / weight) ** 2, self._measure_all(layout)
            return Pending(layout.groups, *whole, slot.weight / weight, slot.samples)
        if slot.last is None or slot.last.step != self.step - 1:
            return None
        samples = slot.last.samples + slot.samples
        share, scale = slot.samples / samples, self._norms.scale()
        for bucket, kept in zip(layout.buckets, slot.last.flats, strict=True):
            if slot.last.scale != scale:
                kept.mul_(scale / slot.last.scale)
            kept.lerp_(bucket.flat[: bucket.gradient_numel], share)  # the mean of both
            self._norms.add(bucket, kept)
        mean = self._norms.take(layout)
        for bucket, kept in zip(layout.buckets, slot.last.flats, strict=True):
            kept.sub_(bucket.flat[: bucket.gradient_numel])  # 1 - share times their difference
            self._norms.add(bucket, kept)
        between = self._norms.take(layout) * (share / (1 - share))
        return Pending(layout.groups, mean + between, mean, 2.0, samples)

    def _keep_last(self, slot: Slot) -> None:
        """Copies the gradient of a step with one micro-batch, where the next step is measured."""
        if not self._measures(self.step + 1) or slot.pieces != 1:
            return
        parts = [bucket.flat[: bucket.gradient_numel] for bucket in slot.layout.buckets]
        flats = slot.last.flats if slot.last is not None else [torch.empty_like(part) for part in parts]
        for kept, part in zip(flats, parts, strict=True):
            kept.copy_(part)
        slot.last = Last(flats, self.step, slot.samples, self._norms.scale())

    # -- what it is for

    @property
    def noise(self) -> GradientNoise | None:
        """The noise of the gradient of one base batch; None before the first estimate."""
        return self._noise(None)

    def _noise(self, group: int | None) -> GradientNoise | None:
        mean = self.averages.mean(group)
        return None if mean is None else GradientNoise(mean.trace / self._base(), mean.square)

    def gains_of(self, batch_size: int) -> tuple[float, ...]:
        """Returns the gains of a global batch by what is known now: over all parameters, then of each group; 1 where
        nothing was measured yet.
        """
        scale = batch_size / self._base()
        found = (self._noise(group) for group in (None, *range(len(self.averages.groups))))
        return tuple(1.0 if one is None else gain(one.variance, one.square, scale) for one in found)

    def hold_gains(self, step: int, batch_size: int) -> None:
        """Notes the gains of a global batch that begins with a step, or goes on with new gains."""
        gains = self.gains_of(batch_size)
        kept = sorted(one for one in self.gains if one < step)[1 - MOST_GAINS :]
        self.gains = {**{one: self.gains[one] for one in kept}, step: gains}

    def drop_gains(self, step: int) -> None:
        """Drops the gains of a global batch that was to begin after a step: a rank that has never heard of it would
        measure in other steps.
        """
        if self.gains and max(self.gains) > step:
            self.gains = {first: held for first, held in self.gains.items() if first <= step}

    # -- what travels

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint, a joiner or a peer that lost the last reduction needs."""
        gains = [[step, *held] for step, held in self.gains.items()]
        phase = [self.phase.phase, self.phase.epoch_samples, self.phase.progress.samples, self.phase.left]
        told = {"gains": gains, "progress": [self.progress.samples, self.counted], "phase": phase}
        before = [[call, _pack(moment)] for call, moment in self._before.items()]
        return {"now": _pack(self._now), "before": before, "of": self._of, **told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`; from nothing with {}, as of a checkpoint without averages.

        Raises:
            ValueError: If it is something else.
        """
        self._now, self._before, self._of = Moment(), {}, -1
        self.gains = {step: tuple(held) for step, *held in state.get("gains", ())}
        samples, self.counted = state.get("progress", (0.0, 0))
        phase, epoch_samples, of_phase, left = state.get("phase", (-1, 1, 0.0, 0))
        self.progress, self.phase = Progress(samples), PhaseProgress(phase, epoch_samples, Progress(of_phase), left)
        if state:
            self._now, self._of = _unpack(state["now"]), state["of"]
            self._before = {call: _unpack(moment) for call, moment in state["before"]}
        if count := self._norms.count:
            self._resize(count)


def _rearranged(gains: tuple[float, ...], came_from: Sequence[int | None]) -> tuple[float, ...]:
    """Returns the gains of groups that had other numbers before; a new group has the gain of all parameters."""
    overall, *own = gains
    return overall, *(overall if one is None or one >= len(own) else own[one] for one in came_from)


def _floats(numbers: Numbers) -> list[float]:
    return numbers.tolist() if isinstance(numbers, torch.Tensor) else list(numbers)


def _pack(moment: Moment) -> dict[str, Any]:
    pending = moment.pending
    if pending is None:
        return {"averages": moment.averages.to_numbers(), "pending": None}
    small, mean = _floats(pending.small), _floats(pending.mean)
    packed = [list(pending.groups), small, mean, pending.parts, pending.samples]
    return {"averages": moment.averages.to_numbers(), "pending": packed}


def _unpack(packed: dict[str, Any]) -> Moment:
    averages = NoiseAverages.from_numbers(packed["averages"])
    if packed["pending"] is None:
        return Moment(averages)
    groups, small, mean, parts, samples = packed["pending"]
    return Moment(averages, Pending(tuple(groups), small, mean, parts, samples))
