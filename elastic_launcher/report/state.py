"""The state of a job as its events tell it: what the progress line, the status and the metrics have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_launcher.events import Event


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known after some events.

    Attributes:
        started: What ``job_started`` said.
        started_at: Seconds since the epoch.
        last_at: Time of the last event.
        step: Optimizer steps done.
        epoch: Of the last progress.
        epochs: Of the whole training, or None.
        total_steps: Of the whole training, or None.
        samples: Samples used.
        loss: Of the last progress; a text for what is no finite number; None before.
        samples_per_second: Of the last progress, or None.
        world_size: Ranks now.
        members: Of the generation, in rank order.
        generation: Its number.
        resizes: How many generations came after the first.
        hint: The last ``hint_applied``.
        message: Of the last warning, rejection or loss.
        logged: The last values of ``job.log``.
        finished: What ``job_finished`` said, or None.
    """

    started: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    last_at: float = 0.0
    step: int = 0
    epoch: int = 0
    epochs: int | None = None
    total_steps: int | None = None
    samples: int = 0
    loss: float | str | None = None
    samples_per_second: float | None = None
    world_size: int = 0
    members: tuple[Mapping[str, int], ...] = ()
    generation: int = 0
    resizes: int = 0
    hint: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    logged: Mapping[str, float] = field(default_factory=dict)
    finished: Mapping[str, Any] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Estimates the rest from the steps done so far; None while nothing is known."""
        trained = self.last_at - self.started_at
        if self.total_steps is None or self.step < 1 or trained <= 0:
            return None
        if self.samples_per_second and self.samples:
            return (self.total_steps - self.step) * (self.samples / self.step) / self.samples_per_second
        return (self.total_steps - self.step) * trained / self.step

    @property
    def quota(self) -> str:
        """The hint as ``guaranteed/allowed/limit``; empty without one."""
        if not self.hint:
            return ""
        return "/".join(
            "-" if self.hint.get(k) is None else str(self.hint[k]) for k in ("guaranteed", "allowed", "limit")
        )


def advance(state: JobState, event: Event) -> JobState:
    """Returns the state after one more event."""
    state = replace(state, last_at=event.time)
    match event.kind:
        case "job_started":
            return replace(state, started=event.fields, started_at=event.time)
        case "progress":
            return replace(
                state,
                step=event["step"],
                epoch=event["epoch"],
                epochs=event.get("epochs"),
                total_steps=event.get("total_steps"),
                samples=event.get("samples") or state.samples,
                loss=event.get("loss"),
                samples_per_second=event.get("samples_per_second") or state.samples_per_second,
            )
        case "log":
            return replace(state, logged={**state.logged, **event["values"]})
        case "generation_formed":
            return replace(
                state,
                world_size=event["world_size"],
                members=tuple(event["members"]),
                generation=event.generation,
                resizes=state.resizes + (state.world_size > 0),
            )
        case "hint_applied":
            return replace(state, hint=event.fields)
        case "warning" | "hint_rejected" | "hint_missing" | "node_failed" | "node_lost":
            return replace(state, message=event.get("message", ""))
        case "job_finished":
            return replace(
                state,
                finished=event.fields,
                step=event.get("steps") or state.step,
                samples=event.get("samples") or state.samples,
            )
    return state


def fold(events: Iterable[Event]) -> JobState:
    """Returns the state after all of the events."""
    state = JobState()
    for event in events:
        state = advance(state, event)
    return state


def describe(event: Event) -> str | None:
    """Returns one line that tells a person what happened; None for what only changes numbers."""
    get = event.get
    match event.kind:
        case "job_started":
            return (
                f"job {get('name')} started: {get('min_nodes')} to {get('max_nodes')} nodes of {get('nproc_per_node')}"
            )
        case "generation_formed":
            nodes = ", ".join(str(n) for n in dict.fromkeys(m["node"] for m in event["members"]))
            pause = f", paused {event['pause_seconds']:.3f} s" if event.get("cause") != "start" else ""
            return f"generation {event.generation}: {event['world_size']} ranks on node {nodes} ({get('cause')}{pause})"
        case "hint_applied":
            numbers = ", ".join(f"{k} {event[k]}" for k in ("guaranteed", "allowed", "limit") if get(k) is not None)
            stale = " (stale: no growth)" if get("stale") else ""
            return f"hint: {numbers or 'nothing matches'}{stale}; target {get('target_nodes')} nodes"
        case "notice":
            return f"node {get('node')} was told to go ({get('source')}): it leaves after this step"
        case "node_started":
            return f"node {get('node')} is starting"
        case "node_left":
            return f"node {get('node')} left ({get('cause')})"
        case "node_failed" | "node_lost" | "warning" | "hint_rejected" | "hint_missing":
            return str(get("message", event.kind))
        case "step_redone":
            return f"step {get('step')} is done again: a node was lost in it"
        case "events_gap":
            return f"{get('lost')} events could not be written"
        case "job_finished":
            return None  # the launcher's last line says it
    return None
