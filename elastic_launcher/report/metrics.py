"""Numbers of a job, from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elastic_launcher.events import Event
from elastic_launcher.report.state import fold


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a pipeline compares runs by. Times are in seconds.

    Attributes:
        world_size_final: Ranks at the end.
        resizes_total: Changes of the world size.
        goodput: Share of the time since the start that was spent in steps that counted.
        samples_per_second: Over the whole training.
        steps: Optimizer steps.
        samples: Samples used.
        duration: From start to end.
        pauses: Of each resize, in order.
        notices: Nodes that were told to go.
        failures: Nodes that failed or were lost.
        steps_redone: Steps that were done again.
        loss: The last one told; None if there was none or it was not finite.
        loss_not_finite: How many progress events had a NaN or infinite loss.
        events_lost: Events that could not be written.
        exit_code: Of the job; None while it runs.
        logged: Last values of ``job.log``.
    """

    world_size_final: int
    resizes_total: int
    goodput: float
    samples_per_second: float
    steps: int
    samples: int
    duration: float
    pauses: tuple[float, ...]
    notices: int
    failures: int
    steps_redone: int
    loss: float | None
    loss_not_finite: int
    events_lost: int
    exit_code: int | None
    logged: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Returns the metrics as JSON values."""
        return {**asdict(self), "pauses": list(self.pauses)}


def measure(events: Sequence[Event]) -> Metrics:
    """Returns the numbers of a job that has ended or still runs."""
    state = fold(events)
    formed = [event for event in events if event.kind == "generation_formed"]
    progress = [event for event in events if event.kind == "progress"]
    duration = max(0.0, state.last_at - state.started_at)
    trained = state.last_at - formed[0].time if formed else 0.0
    pauses = tuple(float(event["pause_seconds"]) for event in formed[1:])
    finished = state.finished or {}
    kinds = [event.kind for event in events]
    return Metrics(
        world_size_final=state.world_size,
        resizes_total=state.resizes,
        goodput=float(finished.get("goodput", (trained - sum(pauses)) / duration if duration else 0.0)),
        samples_per_second=round(state.samples / trained, 2) if trained > 0 else 0.0,
        steps=state.step,
        samples=state.samples,
        duration=round(duration, 3),
        pauses=pauses,
        notices=kinds.count("notice"),
        failures=kinds.count("node_failed") + kinds.count("node_lost"),
        steps_redone=kinds.count("step_redone"),
        loss=float(state.loss) if isinstance(state.loss, (int, float)) else None,
        loss_not_finite=sum(isinstance(event.get("loss"), str) for event in progress),
        events_lost=sum(event["lost"] for event in events if event.kind == "events_gap"),
        exit_code=finished.get("exit_code"),
        logged=dict(state.logged),
    )
