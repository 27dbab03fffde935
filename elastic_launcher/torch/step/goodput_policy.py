"""The policy of an adaptive batch: measures steps, fits the throughput model, and proposes the batch of most goodput.

Each rank measures, so that any of them can decide when it becomes rank 0; that one alone fits the model and decides, in
a thread beside the training.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
import warnings
from dataclasses import dataclass, replace

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.decision import BatchChange, decide
from elastic_launcher.adaptive.fit import fit
from elastic_launcher.adaptive.goodput import GradientNoise
from elastic_launcher.adaptive.observations import Observation, Observations
from elastic_launcher.torch.collectives.threads import start_thread
from elastic_launcher.torch.session import Session

FEWEST_STEPS = 20  # of one batch and world size before a decision: their median stands for both
FEWEST_ESTIMATES = 0.1  # of the weight of all, of the noise averages: a hundred steps of the first batch
INTERVAL, MOST_INTERVAL = 1.0, 30.0  # seconds between two decisions: at first, and later
SLOWER = 60  # the interval is so many times shorter than the time since the first step


def check_installed() -> None:
    """Refuses what lacks the library that fits the model.

    Raises:
        ImportError: If scipy is missing.
    """
    try:
        importlib.import_module("scipy.optimize")
    except ImportError as error:
        raise ImportError("autoscale_batch_size() needs scipy: pip install 'elastic-launcher[adaptive]'") from error


@dataclass(frozen=True, slots=True)
class _Question:
    """What is to be decided."""

    turn: int
    batch_size: int
    world_size: int
    machines: int
    bounds: Bounds
    noise: GradientNoise
    observations: tuple[Observation, ...]


class GoodputPolicy:
    """Proposes the global batch of most goodput."""

    def __init__(self, session: Session, bounds: Bounds) -> None:
        self._session = session
        self._bounds = bounds
        self._observations = Observations()
        self._now = (0, 0)  # batch and world size of the last step
        self._steps = 0  # that had them
        self._turn = 0  # counts how often these have changed
        self._began: float | None = None
        self._decided = 0.0
        self._thread: threading.Thread | None = None
        self._failed = False
        self._answer: tuple[int, BatchChange] | None = None  # with the turn that it is for

    def note_step(self, batch_size: int, samples: int, world_size: int) -> None:
        """Notes the time of a step that is complete; see `Policy`."""
        if (batch_size, world_size) != self._now:
            self._now, self._steps, self._turn = (batch_size, world_size), 0, self._turn + 1
        steady = self._session.pace.steady
        if steady is None or samples != batch_size:
            return
        self._steps += 1
        micro_batches = self._known_bounds().micro_batches(batch_size, world_size)
        (seconds, own), count = steady, len(micro_batches)
        # a GPU computes while this process seems to wait for its peers
        each = own / count if self._session.device.type == "cpu" else None
        self._observations.add(Observation(_machines(world_size), world_size, micro_batches[0], count, seconds, each))

    def propose(self, step: int, batch_size: int, world_size: int) -> BatchChange | None:
        """Returns what was decided for this batch and world size, once; see `Policy`. What was decided before others
        held in between is out of date.
        """
        answer, asked = self._answer, (batch_size, world_size)
        if answer is not None:
            self._answer = None
            if asked == self._now and answer[0] == self._turn:
                return answer[1]
        if self._is_due(asked):
            self._ask(batch_size, world_size)
        return None

    def _is_due(self, asked: tuple[int, int]) -> bool:
        now = time.monotonic()
        if self._began is None:
            self._began = now
        interval = min(max(INTERVAL, (now - self._began) / SLOWER), MOST_INTERVAL)
        if self._failed or asked != self._now or self._steps < FEWEST_STEPS or now - self._decided < interval:
            return False
        return self._thread is None or not self._thread.is_alive()

    def _ask(self, batch_size: int, world_size: int) -> None:
        meter = self._session.measure_noise()
        noise, known = meter.noise, [one.weight for one in meter.averages.groups if one.weight]
        if noise is None or min(known) < FEWEST_ESTIMATES:
            return
        self._decided = time.monotonic()
        question = _Question(
            self._turn,
            batch_size,
            world_size,
            _machines(world_size),
            self._known_bounds(),
            noise,
            tuple(self._observations),
        )
        self._thread = start_thread("elastic-decide-batch", self._decide, question)

    def _decide(self, question: _Question) -> None:
        try:
            fitted = fit(Observations(question.observations))
            change = decide(
                question.batch_size, fitted, question.noise, question.bounds, question.machines, question.world_size
            )
        except Exception as error:  # noqa: BLE001 - the training goes on with the batch that it has
            self._failed = True
            said = f"the global batch stays {question.batch_size}: no other one can be found ({error})"
            warnings.warn(said, stacklevel=1)
            return
        if change is not None:
            self._answer = question.turn, change

    def _known_bounds(self) -> Bounds:
        """Returns the bounds, with what is known of the model since it trains."""
        return replace(self._bounds, batch_statistics=self._session.normalizes is not None)


def _machines(world_size: int) -> int:
    """Returns on how many nodes so many ranks are."""
    return -(-world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
