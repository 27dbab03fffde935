"""The summary of a job in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_launcher.events import Event
from elastic_launcher.report.metrics import Metrics


def summarize(events: Sequence[Event], metrics: Metrics) -> str:
    """Returns a short Markdown page: how it ended, its numbers, its generations, and what went wrong."""
    started = next((event for event in events if event.kind == "job_started"), None)
    finished = next((event for event in events if event.kind == "job_finished"), None)
    name = started.get("name", "job") if started is not None else "job"
    lines = [f"# {name}", ""]
    lines += [str(finished.get("message") or "finished") if finished is not None else "still running", ""]
    rows = [
        ("steps", f"{metrics.steps:,}"),
        ("samples", f"{metrics.samples:,}"),
        ("samples per second", f"{metrics.samples_per_second:,.1f}"),
        ("duration", f"{metrics.duration:.1f} s"),
        ("goodput", f"{metrics.goodput:.1%}"),
        ("resizes", f"{metrics.resizes_total}"),
        ("longest pause", f"{max(metrics.pauses, default=0.0):.3f} s"),
        ("last loss", "-" if metrics.loss is None else f"{metrics.loss:.4g}"),
        *((key, f"{value:.6g}") for key, value in metrics.logged.items()),
    ]
    lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows), ""]
    lines += ["## Generations", "", "| | ranks | nodes | first step | cause | pause |", "|---|---|---|---|---|---|"]
    for event in events:
        if event.kind == "generation_formed":
            nodes = ", ".join(str(n) for n in dict.fromkeys(member["node"] for member in event["members"]))
            cells = (event.generation, event["world_size"], nodes, event["first_step"], event["cause"])
            lines.append(f"| {' | '.join(map(str, cells))} | {event['pause_seconds']:.3f} s |")
    notes = remarks(events, metrics)
    if notes:
        lines += ["", "## Remarks", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def remarks(events: Sequence[Event], metrics: Metrics) -> list[str]:
    """Returns what a reader should know: warnings, failures, a loss that was no number, events that were lost."""
    notes = []
    for event in events:
        if event.kind in ("warning", "hint_rejected", "hint_missing", "node_failed", "node_lost"):
            notes.append(str(event.get("message", event.kind)))
        elif event.kind == "step_redone":
            notes.append(f"step {event['step']} was done again")
    if metrics.loss_not_finite:
        notes.append(f"the loss was not a finite number in {metrics.loss_not_finite} reports")
    if metrics.events_lost:
        notes.append(f"{metrics.events_lost} events could not be written (a full disk?): the history has a gap")
    return list(dict.fromkeys(notes))
