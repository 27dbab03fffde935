"""The document ``metrics.json`` of a job, for comparing runs, from its events.

Prometheus metrics of a running job are in `launcher.prometheus`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elastic_launcher.events import Event, finite
from elastic_launcher.report.history import History, relate
from elastic_launcher.report.lost import IDLE, NAMES, balance
from elastic_launcher.report.state import fold
from elastic_launcher.report.status import goodput_by_size


@dataclass(frozen=True, slots=True)
class Metrics:
    """The numbers of a job that has ended or still runs.

    Attributes:
        world_size_final: Ranks at the end.
        resizes_total: Changes of the membership, once it was as large as asked for at the start.
        goodput: Share of the wall time since the start that was spent in steps that counted.
        counted_seconds: That time.
        idle_seconds: Between runs of the job, and after its training.
        lost_seconds: All other time, by what it was lost to.
        samples_per_second: Over the whole training, pauses included.
        duration_seconds: From the start to the last event.
        gpu_seconds: How long nodes were there, times the ranks of each, all together.
        pauses_seconds: How long training stood still for each generation after the first, in order.
        pause_seconds: All of these together.
        notices: Nodes that received a termination notice.
        failures: Nodes that failed or were lost.
        nodes_failed: Those of them that had not trained yet.
        nodes_lost: Those that had.
        steps_redone: Steps that were done again.
        checkpoints: How many were saved.
        checkpoint_bytes: What they took on disk, all together.
        checkpoint_held_seconds: How long the training waited for them, all together.
        adaptive: The last values of the adaptive batch, by name; empty with a fixed one.
        goodput_by_size: Useful samples per second on each number of ranks that the job could have.
        loss: The last one reported; None if there was none, or it was not finite.
        loss_not_finite: How many reports had a NaN or infinite loss.
        events_lost: Events that could not be written.
        logged: Last values of ``job.log``; a text for what is no finite number.
    """

    world_size_final: int
    resizes_total: int
    goodput: float
    counted_seconds: float
    idle_seconds: float
    lost_seconds: dict[str, float]
    samples_per_second: float
    steps: int
    samples: int
    duration_seconds: float
    generations: int
    gpu_seconds: float
    pauses_seconds: tuple[float, ...]
    pause_seconds: float
    notices: int
    failures: int
    nodes_failed: int
    nodes_lost: int
    steps_redone: int
    checkpoints: int
    checkpoint_bytes: int
    checkpoint_held_seconds: float
    adaptive: dict[str, float]
    goodput_by_size: list[dict[str, Any]]
    loss: float | None
    loss_not_finite: int
    events_lost: int
    exit_code: int | None
    logged: dict[str, Any]

    @property
    def spent_seconds(self) -> dict[str, float]:
        """The causes of lost time by their names for people; those without time are left out."""
        spent = {"counted": self.counted_seconds, **self.lost_seconds, IDLE: self.idle_seconds}
        return {NAMES[kind]: seconds for kind, seconds in spent.items() if seconds > 0}

    def to_dict(self) -> dict[str, Any]:
        """Returns the metrics as JSON values."""
        return {**asdict(self), "pauses_seconds": list(self.pauses_seconds)}


def measure(events: Sequence[Event]) -> Metrics:
    """Returns the numbers of a job."""
    state = fold(events)
    formed = [event for event in events if event.kind == "generation_formed"]
    progress = [event for event in events if event.kind == "progress"]
    pauses = tuple(finite(event.get("pause_seconds")) or 0.0 for event in formed[1:])
    saved = [event for event in events if event.kind == "checkpoint_saved"]
    kinds = [event.kind for event in events]
    went = balance(events)
    return Metrics(
        world_size_final=state.world_size,
        resizes_total=state.resizes,
        goodput=round(went.goodput, 4),
        counted_seconds=round(went.counted, 3),
        idle_seconds=round(went.idle, 3),
        lost_seconds={cause: round(seconds, 3) for cause, seconds in went.lost.items()},
        samples_per_second=round(_speed(progress), 2),
        steps=state.step,
        samples=state.samples,
        duration_seconds=round(max(0.0, state.last_at - state.started_at), 3),
        generations=len(formed),
        gpu_seconds=round(_held(relate(events)), 3),
        pauses_seconds=pauses,
        pause_seconds=round(sum(pauses), 6),
        notices=kinds.count("notice"),
        failures=kinds.count("node_failed") + kinds.count("node_lost"),
        nodes_failed=kinds.count("node_failed"),
        nodes_lost=kinds.count("node_lost"),
        checkpoints=len(saved),
        checkpoint_bytes=sum(event.get("bytes") or 0 for event in saved),
        checkpoint_held_seconds=round(sum(finite(event.get("held_seconds")) or 0.0 for event in saved), 3),
        steps_redone=kinds.count("step_redone"),
        adaptive=dict(state.adaptive),
        goodput_by_size=goodput_by_size(state, {}),
        loss=finite(state.loss),
        loss_not_finite=sum(event.get("loss") is not None and finite(event["loss"]) is None for event in progress),
        events_lost=sum(event.get("lost") or 0 for event in events if event.kind == "events_gap"),
        exit_code=None if state.finished is None else state.finished.get("exit_code"),
        logged=state.logged,
    )


def _held(history: History) -> float:
    """Returns for how long a job has had GPUs, times their number: a rank has one."""
    ranks = history.started.get("nproc_per_node") or 1
    return float(
        ranks * sum((history.seconds if one.ended is None else one.ended) - one.started for one in history.nodes)
    )


def _speed(progress: Sequence[Event]) -> float:
    told = [event for event in progress if event.get("samples")]
    if not told:
        return 0.0
    seconds = told[-1].time - told[0].time
    if seconds > 0:
        return float((told[-1]["samples"] - told[0]["samples"]) / seconds)
    return finite(told[-1].get("samples_per_second")) or 0.0
