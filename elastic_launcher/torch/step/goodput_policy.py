"""The policy of an adaptive batch: measures steps, fits the throughput model, and proposes the batch of most goodput.

Each rank measures, so that any of them can decide when it becomes rank 0; that one alone fits the model and decides, in
a thread beside the training.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import warnings
from dataclasses import dataclass

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.decision import BatchChange, decide
from elastic_launcher.adaptive.fit import fit
from elastic_launcher.adaptive.goodput import GradientNoise
from elastic_launcher.adaptive.observations import Observation, Observations
from elastic_launcher.torch.collectives.threads import start_thread
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.step.step_times import known_bounds, known_noise, machines_of

FEWEST_STEPS = 8  # of one batch and world size before a decision: their median stands for both
INTERVAL, MOST_INTERVAL = 0.1, 30.0  # seconds between two decisions: at first, and later
SLOWER = 20  # the interval is so many times shorter than the time since the first step


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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now = (0, 0)  # batch and world size of the last step
        self._steps = 0  # that had them
        self._turn = 0  # counts how often these have changed
        self._began: float | None = None
        self._decided = 0.0
        self._thread: threading.Thread | None = None
        self._warned = False
        self._answer: tuple[int, BatchChange] | None = None  # with the turn that it is for

    def note_step(self, batch_size: int, samples: int, world_size: int) -> None:
        """Counts a step that is complete, and was timed; see `Policy`."""
        if (batch_size, world_size) != self._now:
            self._now, self._steps, self._turn = (batch_size, world_size), 0, self._turn + 1
        self._steps += self._session.pace.steady is not None and samples == batch_size

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
        if asked != self._now or self._steps < FEWEST_STEPS or now - self._decided < interval:
            return False
        return self._thread is None or not self._thread.is_alive()

    def _ask(self, batch_size: int, world_size: int) -> None:
        session, noise = self._session, known_noise(self._session)
        if noise is None:
            return
        self._decided = time.monotonic()
        question = _Question(
            self._turn,
            batch_size,
            world_size,
            machines_of(world_size),
            known_bounds(session),
            noise,
            tuple(session.times),
        )
        with contextlib.suppress(RuntimeError):  # too many threads: it is asked again later
            self._thread = start_thread("elastic-decide-batch", self._decide, question)

    def _decide(self, question: _Question) -> None:
        try:
            fitted = fit(Observations(question.observations))
            change = decide(
                question.batch_size, fitted, question.noise, question.bounds, question.machines, question.world_size
            )
        except Exception as error:  # noqa: BLE001 - the training goes on with the batch that it has
            if not self._warned:
                self._warned = True
                said = f"the global batch stays {question.batch_size} for now: no other one can be found"
                warnings.warn(f"{said} ({type(error).__name__}: {error}). It is tried again", stacklevel=1)
            return
        if change is not None:
            self._answer = question.turn, change
