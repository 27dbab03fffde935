"""What a job's step times say about its goodput on each number of GPUs that it may have.

Rank 0 reports step times, bounds of the batch and the gradients' noise in ``step_times`` events. Status, metrics and
`elastic-launcher plan` make the table of them: measured where the job was, modelled elsewhere. Without scipy it has
only what was measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.fit import Fit, fit
from elastic_launcher.adaptive.goodput import NO_NOISE, Basis, Choice, GradientNoise, SizeGoodput, gain, goodput_by_size
from elastic_launcher.adaptive.observations import Configuration, Observation, Observations

MOST_SIZES = 32  # of a table: an adaptive batch takes 2 ms for each
LEAST_WORTH = 1 / 3  # of itself: a GPU that adds less is hardly worth it
_JOBS = 256  # whose tables are kept: a quota controller on one machine reads those of all jobs in each round


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a job has reported.

    Attributes:
        observations: Step times, one for each configuration.
        bounds: Which batch sizes there are.
        used: Batch sizes that the job has had, the present one last.
        noise: The gradients' noise; `NO_NOISE` where the batch is fixed, or the noise is not known yet.
    """

    observations: tuple[Observation, ...]
    bounds: Bounds
    used: tuple[int, ...]
    noise: GradientNoise = NO_NOISE

    @staticmethod
    def read(fields: Mapping[str, Any]) -> StepTimes | None:
        """Returns what events say together (`JobState.step_times`); None where they say nothing, or what can't be."""
        try:
            observations = tuple(_observation(*row) for row in fields["times"])
            noise = fields.get("noise")
            known = NO_NOISE if noise is None else GradientNoise(*noise)
            return StepTimes(observations, Bounds(**fields["bounds"]), tuple(fields["used"]), known)
        except (KeyError, TypeError, ValueError):
            return None


def _observation(
    machines: int, ranks: int, micro_batch: int, accumulation: int, seconds: Any, each: Any, count: int
) -> Observation:
    """Returns a row of an event; a time that is not finite is a text there."""
    own = None if each is None else float(each)
    return Observation(machines, ranks, micro_batch, accumulation, float(seconds), own, count)


def sizes(least_nodes: int, most_nodes: int, per_node: int) -> list[tuple[int, int]]:
    """Returns nodes and ranks of the sizes that a job may have; of very many, `MOST_SIZES` with growing distances."""
    nodes = list(range(least_nodes, most_nodes + 1))
    if len(nodes) > MOST_SIZES:
        nodes = sorted({round(point) for point in np.geomspace(least_nodes, most_nodes, MOST_SIZES).tolist()})
    return [(one, one * per_node) for one in nodes]


@dataclass(frozen=True, slots=True)
class Table:
    """The goodput of a job by size.

    Attributes:
        rows: One for each size of which something is known, ascending.
        assumptions: What was not measured, and what is assumed instead; one sentence each.
        micro_batches: How many sizes of micro-batches were timed.
    """

    rows: tuple[SizeGoodput, ...] = ()
    assumptions: tuple[str, ...] = ()
    micro_batches: int = 0

    @property
    def last_worthwhile(self) -> int | None:
        """The ranks beyond which a GPU adds less than `LEAST_WORTH` of what one of the smallest size gives.

        None where that is not known: the largest size that the model speaks of is still worth it, or micro-batches of
        one size only were timed, so that nobody knows what smaller ones take.
        """
        known = [one for one in self.rows if one.basis is not Basis.BOUNDED]
        if not known or self.micro_batches < 2:
            return None
        least = LEAST_WORTH * known[0].goodput / known[0].ranks

        def pays(smaller: SizeGoodput, larger: SizeGoodput) -> bool:
            return larger.goodput - smaller.goodput >= least * (larger.ranks - smaller.ranks)

        last = next(one for n, one in enumerate(known) if not any(pays(one, larger) for larger in known[n + 1 :]))
        return None if last is known[-1] else last.ranks


def table(fields: Mapping[str, Any], on: Iterable[tuple[int, int]]) -> Table:
    """Returns the goodput by size; without rows where nothing was timed.

    Args:
        fields: What a job's events say together (`JobState.step_times`).
        on: Machines and ranks.
    """
    known = StepTimes.read(fields)
    return Table() if known is None else _table(known, tuple(on))


@lru_cache(maxsize=_JOBS)
def _table(known: StepTimes, on: tuple[tuple[int, int], ...]) -> Table:
    observations = Observations(known.observations)
    if not observations:
        return Table()
    count = len({one.micro_batch for one in observations})
    try:
        fitted = fit(observations)
    except (ImportError, ArithmeticError, ValueError) as error:  # a status has to come, whatever was timed
        rows = tuple(one for size in on if (one := _measured(known, observations, *size)))
        return Table(rows, (f"nothing: sizes that were not measured are left out ({error})",), count)
    return Table(tuple(one for size in on for one in _at(known, fitted, size)), fitted.assumptions, count)


def _at(known: StepTimes, fitted: Fit, size: tuple[int, int]) -> list[SizeGoodput]:
    """Returns the goodput on one size; none where batch norm can't have its two samples there."""
    with contextlib.suppress(ValueError):
        return goodput_by_size(fitted, known.noise, known.bounds, [size], known.used)
    return []


def _measured(known: StepTimes, observations: Observations, machines: int, ranks: int) -> SizeGoodput | None:
    """Returns the goodput of the batch that the job had last where it was timed; None where it was not."""
    seconds = {one.configuration: one.seconds for one in observations}
    for batch in reversed(known.used):
        with contextlib.suppress(ValueError):
            micro_batches = known.bounds.micro_batches(batch, ranks)
            largest, count = max(micro_batches), len(micro_batches)
            taken = seconds.get(Configuration(machines, ranks, largest, count))
            if taken is not None:
                scale = batch / known.bounds.base_batch_size
                worth = gain(known.noise.variance, known.noise.square, scale)
                found = Choice(batch, scale, largest, count, batch / taken, worth)
                return SizeGoodput(machines, ranks, found, batch / taken, Basis.MEASURED)
    return None
