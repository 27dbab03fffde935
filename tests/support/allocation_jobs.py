"""Jobs for tests of the allocation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.allocation.speeds import MeasuredSpeeds
from elastic_launcher.quota.allocation.worth import Candidate, Counts, Values

LINEAR = MeasuredSpeeds.by_size({}, 4)


@dataclass(frozen=True, slots=True)
class Slower:
    """Speeds that are linear on one machine, and a share of that on several."""

    share: float
    machine_gpus: int = 4

    def curve(self, counts: Counts) -> Values:
        """Returns the speeds on numbers of GPUs, each on the fewest machines that hold them."""
        return np.maximum.accumulate(np.array([self.at(-(-gpus // self.machine_gpus), gpus) for gpus in counts]))

    def at(self, machines: int, gpus: int) -> float:
        """Returns the speed on GPUs of a number of machines."""
        return gpus * (self.share if machines > 1 else 1.0)


def candidate(name: str, **fields: Any) -> Candidate:
    """Returns a job that is linear and may have any number of GPUs up to 64."""
    usual = Candidate(
        name, limit=64, request=1, profiled=64, age=36000.0, changes=0, service=0.0, delay=30.0, work=None,
        submitted=0.0, speeds=LINEAR,
    )  # fmt: skip
    return replace(usual, **fields)


@st.composite
def drawn_machines(draw: st.DrawFn) -> dict[str, int]:
    """Draws up to six machines of up to eight GPUs."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    return {f"m{number}": size for number, size in enumerate(sizes)}


@st.composite
def drawn_jobs(draw: st.DrawFn, most: int = 7) -> list[Candidate]:
    """Draws jobs of all kinds."""
    jobs = []
    for number in range(draw(st.integers(1, most))):
        node = draw(st.sampled_from([1, 1, 1, 2, 4]))
        least = node * draw(st.integers(1, 2))
        limit = least + node * draw(st.integers(0, 6))
        sizes = draw(st.sampled_from([(), tuple(range(least, limit + 1, 2 * node))]))
        rates = draw(st.dictionaries(st.tuples(st.integers(1, 3), st.integers(3, 8)), st.floats(0.5, 8.0), max_size=3))
        jobs.append(
            candidate(
                f"job-{number}",
                minimum=least,
                limit=limit,
                sizes=sizes,
                node_gpus=node,
                request=draw(st.integers(1, 4)),
                profiled=draw(st.integers(0, 8)),
                age=draw(st.floats(0.0, 1e5)),
                service=draw(st.sampled_from([0.0, 1e3, 1e5])),
                changes=draw(st.integers(0, 5)),
                work=draw(st.floats(10.0, 1e6)) if rates else None,
                speeds=MeasuredSpeeds(rates, 4),
            )
        )
    return jobs


def used(placements: dict[str, dict[str, int]] | dict[str, Placement]) -> dict[str, int]:
    """Returns the GPUs that placements take of each machine."""
    found: dict[str, int] = {}
    for placement in placements.values():
        for machine, gpus in placement.items():
            found[machine] = found.get(machine, 0) + gpus
    return found
