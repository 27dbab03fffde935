"""What a fit of the throughput model takes with 1,000 step times, and how wrong its times are.

Ours takes the times into its table, which holds one median for each configuration, and fits these. One alternative is
the same fit of each time by itself. The other one is AdaptDL's fit of means, with gradients from autograd; it is
measured where it is installed (`pip install --no-deps adaptdl==0.2.11 autograd`). Times have an error of 10 %.

What is measured is the CPU time of the process, all its threads together: fits run beside a training, and it does not
depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.common import finish, row
from elastic_launcher.adaptive.fit import fit
from elastic_launcher.adaptive.observations import Configuration, Observation, Observations
from elastic_launcher.adaptive.throughput import ThroughputModel

try:
    from adaptdl.goodput import fit_perf_params  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    fit_perf_params = None

BAR_SECONDS = 0.010
TIMES = 1000
NOISE = 0.1
TRUTH = ThroughputModel(0.05, 0.002, 0.2, 0.01, 0.08, 0.01, overlap=2.0)
SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 8), (3, 12), (4, 16), (8, 32)]
CASES = {"10 configurations": 1, "40 configurations": 4, "250 configurations": 25}


class Unfolded(Observations):
    """Step times of which each stands for itself."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        super().__init__(observations[:1])
        self._all = observations

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._all)


def configurations(micro_batches: int) -> list[Configuration]:
    """Returns the sizes with several micro-batches each, a third of them with gradient accumulation."""
    sizes = np.geomspace(8, 256, micro_batches).astype(int).tolist()
    return [
        Configuration(*size, micro_batch, 1 + 2 * (number % 3 == 0))
        for number, (size, micro_batch) in enumerate(itertools.product(SIZES, sizes))
    ]


def draw(micro_batches: int, seed: int) -> list[Observation]:
    """Returns noisy times."""
    random = np.random.default_rng(seed)
    return [
        Observation(
            *one,
            TRUTH.step_seconds(*one) * math.exp(random.normal(0, NOISE)),
            TRUTH.micro_batch_seconds(one.micro_batch) * math.exp(random.normal(0, NOISE)),
        )
        for one in itertools.islice(itertools.cycle(configurations(micro_batches)), TIMES)
    ]


def ours(times: Sequence[Observation]) -> ThroughputModel:
    """Fits the table's medians."""
    return fit(Observations(times)).model


def unfolded(times: Sequence[Observation]) -> ThroughputModel:
    """Fits each time by itself."""
    return fit(Unfolded(times)).model


def adaptdl(times: Sequence[Observation]) -> ThroughputModel:
    """Fits as AdaptDL does: the mean of each configuration, of last micro-batches apart from the others."""
    sums: dict[tuple[int, int, int], NDArray[np.float64]] = {}
    for one in times:
        assert one.micro_batch_seconds is not None
        last = max(one.seconds - (one.accumulation - 1) * one.micro_batch_seconds, 1e-3)
        mean = sums.setdefault((one.machines, one.ranks, one.micro_batch), np.zeros(3))
        mean += (1.0, one.micro_batch_seconds, last)
    machines, ranks, micro_batch = np.array(list(sums)).T
    count, partial, last_seconds = np.array(list(sums.values())).T
    found = fit_perf_params(machines, ranks, micro_batch, partial / count, last_seconds / count)
    return ThroughputModel(*map(float, found))


def error(model: ThroughputModel, micro_batches: int) -> float:
    """Returns the mean relative error of a step's time."""
    known = configurations(micro_batches)
    return float(np.mean([abs(model.step_seconds(*one) / TRUTH.step_seconds(*one) - 1) for one in known]))


def timed(work: Callable[[Sequence[Observation]], ThroughputModel], times: Sequence[Observation]) -> tuple[float, Any]:
    """Returns the seconds of CPU time that a fit takes, and its model."""
    began = time.process_time()
    model = work(times)
    return time.process_time() - began, model


def main() -> None:
    """Prints the table, and the machine's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    peers = {"each time by itself": unfolded} | ({"AdaptDL": adaptdl} if fit_perf_params else {})
    rows = []
    table = Table("CPU time of 1,000 step times", "ours, ms", "alternative, ms", "ratio", "errors, %", box=None)
    for case, micro_batches in CASES.items():
        for name, peer in peers.items():
            for work in (ours, peer):
                work(draw(micro_batches, 0))  # imports
            mine, theirs, errors = [], [], []
            for seed in range(options.runs):
                times = draw(micro_batches, seed)
                (one, model), (other, alternative) = timed(ours, times), timed(peer, times)
                mine.append(one)
                theirs.append(other)
                errors.append((error(model, micro_batches), error(alternative, micro_batches)))
            off = [float(np.median(column)) for column in zip(*errors, strict=True)]
            more = {"peer_is": name, "bar": BAR_SECONDS, "error": round(off[0], 4), "peer_error": round(off[1], 4)}
            rows.append(row("throughput_fit", mine, theirs, "s", case=case, **more))
            numbers = [f"{1000 * rows[-1][column]:.1f}" for column in ("ours", "peer")]
            table.add_row(
                f"{case}; {name}", *numbers, f"{rows[-1]['ratio']:g}", ", ".join(f"{100 * one:.1f}" for one in off)
            )
    Console(highlight=False, width=110).print(table)
    print(
        f"medians of {options.runs} runs; the bar is {1000 * BAR_SECONDS:g} ms. "
        "Errors are those of a step's time: ours, the alternative's."
    )
    finish(rows)


if __name__ == "__main__":
    main()
