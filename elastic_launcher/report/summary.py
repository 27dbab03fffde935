"""The summary of a job in Markdown: its outcome, its numbers, its generations, and remarks."""

from __future__ import annotations

import re

from elastic_launcher.report.history import Generation, History
from elastic_launcher.report.metrics import Metrics
from elastic_launcher.report.words import NONE, duration, listing, moment, number, plural, rate, share, size

MOST_GENERATIONS = 50
MOST_REMARKS = 30


def summarize(history: History, metrics: Metrics) -> str:
    """Returns the page."""
    lines = [f"# {_inline(history.name)}", "", *_ending(history), ""]
    lines += [f"- {_inline(name)}: {_inline(value)}" for name, value in _numbers(metrics)]
    lines += ["", "## Where the time went", "", *_spent(metrics)]
    lines += ["", "## Generations", "", *_generations(history)]
    notes = remarks(history, metrics)
    if notes:
        lines += ["", "## Notices, warnings, failures", "", *(f"- {_inline(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def remarks(history: History, metrics: Metrics) -> list[str]:
    """Returns what a reader should know: notices, warnings, failures, a loss that was no number."""
    notes = list(dict.fromkeys(f"at {moment(note.at)}: {note.text}" for note in history.notable))
    if len(notes) > MOST_REMARKS:
        notes = [*notes[:MOST_REMARKS], f"and {len(notes) - MOST_REMARKS:,} more, in the timeline"]
    if metrics.loss_not_finite:
        notes.append(f"the loss was not a finite number in {plural(metrics.loss_not_finite, 'report')}")
    return notes


def _ending(history: History) -> list[str]:
    if history.finished is None:
        return [f"**{history.outcome}**, {duration(history.seconds)} after its start"]
    code = history.finished.get("exit_code")
    first, _, rest = str(history.finished.get("message") or "").strip().partition("\n")
    named = f"**{history.outcome}**" + (f" (exit code {code})" if code else "")
    lines = [f"{named}: {_inline(first)}" if first else named]
    if rest.strip():
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", rest)), default=0))
        lines += ["", f"{fence}text", rest.rstrip(), fence]
    return lines


def _numbers(metrics: Metrics) -> list[tuple[str, str]]:
    pauses = metrics.pauses_seconds
    return [
        ("steps", f"{metrics.steps:,}"),
        ("samples", f"{metrics.samples:,}"),
        ("samples per second", rate(metrics.samples_per_second)),
        ("duration", duration(metrics.duration_seconds)),
        ("goodput", share(metrics.goodput)),
        ("ranks at the end", f"{metrics.world_size_final:,}"),
        ("resizes", f"{metrics.resizes_total:,}"),
        ("pauses", f"{duration(sum(pauses))} in all, the longest {duration(max(pauses))}" if pauses else NONE),
        ("nodes lost, failed", f"{metrics.nodes_lost:,}, {metrics.nodes_failed:,}"),
        ("notices", f"{metrics.notices:,}"),
        ("steps done again", f"{metrics.steps_redone:,}"),
        ("checkpoints", checkpoints(metrics)),
        ("last loss", "not finite" if metrics.loss is None and metrics.loss_not_finite else number(metrics.loss)),
        *((name, number(value)) for name, value in metrics.logged.items()),
    ]


def checkpoints(metrics: Metrics) -> str:
    """Returns how many were saved, and at what price."""
    if not metrics.checkpoints:
        return "none"
    held = duration(metrics.checkpoint_held_seconds)
    return f"{metrics.checkpoints:,} of {size(metrics.checkpoint_bytes)} in all, for which the training waited {held}"


def _spent(metrics: Metrics) -> list[str]:
    whole = sum(metrics.spent_seconds.values())
    rows = [f"- {_inline(name)}: {duration(one)} ({share(one / whole)})" for name, one in metrics.spent_seconds.items()]
    return rows or ["nothing has happened yet"]


def _generations(history: History) -> list[str]:
    if not history.generations:
        return ["none: training did not begin"]
    lines = [f"- {_generation(one)}" for one in history.generations[:MOST_GENERATIONS]]
    more = len(history.generations) - len(lines)
    return [*lines, "", f"and {more:,} more, in the timeline"] if more else lines


def _generation(one: Generation) -> str:
    """Returns a generation in one line: viewers such as Kubeflow's set a table's columns side by side without a gap."""
    where = f"{'node' if len(one.nodes) == 1 else 'nodes'} {listing(one.nodes)}"
    parts = [f"generation {one.number} ({_inline(one.cause)}) at {moment(one.at)}: {plural(one.world_size, 'rank')}"]
    parts.append(f"on {where}, from step {one.first_step:,}")
    said = " ".join(parts)
    if one.number > 1:
        said += f", after a pause of {duration(one.pause_seconds)}"
    return said if one.samples_per_second is None else f"{said}; {rate(one.samples_per_second)} samples/s"


def _inline(text: str) -> str:
    """Keeps a text from being taken for Markdown or HTML."""
    return re.sub(r"([\\`*_|<\[])", r"\\\1", " ".join(text.split()))
