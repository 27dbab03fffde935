"""The timeline of a machine that several jobs share: who held how many GPUs, and each change with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from elastic_launcher.report.charts import legend
from elastic_launcher.report.history import History
from elastic_launcher.report.svg import Chart, Point, whole_ticks
from elastic_launcher.report.timeline import page, table
from elastic_launcher.report.words import clock, moment, plural

COLOURS = 8
"""Jobs that have a colour of their own; after that they repeat."""


def machine_timeline(title: str, gpus: int, jobs: Mapping[str, History], changes: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page, as HTML.

    Args:
        title: Of the page.
        gpus: GPUs of the machine.
        jobs: The history of each job, by its name.
        changes: The rows of the controller's history, oldest first.
    """
    began = min((history.started_at for history in jobs.values() if history.started_at), default=0.0)
    seconds = max((history.started_at - began + history.seconds for history in jobs.values()), default=0.0)
    held = {name: _held(history, history.started_at - began) for name, history in jobs.items()}
    text = "; ".join(
        f"{name}: " + ", ".join(f"{value:g} at {moment(at)}" for at, value in points) for name, points in held.items()
    )
    chart = Chart("machine", "GPUs that jobs hold", "GPUs", text, seconds, 0.0, gpus * 1.05, inner=200)
    shapes = [
        chart.area(points, f"job job-{number % COLOURS}")
        for number, points in reversed(list(enumerate(_stacked(held))))
    ]
    marks = [chart.upright(row["time"] - began, "change", title=f"{row['job']}: {row['reason']}") for row in changes]
    named = legend(
        f'<span class="swatch job-{number % COLOURS}"></span>{escape(name)}' for number, name in enumerate(held)
    )
    rows = [
        ("", [moment(row["time"] - began), escape(row["job"]), escape(row["project"]), escape(row["reason"])])
        for row in changes
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{plural(gpus, "GPU")}, {plural(len(jobs), "job")}, from {clock(began)} on</p>',
        chart.figure(shapes, marks, values=whole_ticks(gpus), legend=named),
        "<h2>Changes</h2>" + table("Changes", ("at", "job", "project", "why"), rows, numeric=()),
    ]
    return page(f"{title} – timeline", body)


def _held(history: History, offset: float) -> list[Point]:
    """Returns what a job's generations held, on the axis of the machine."""
    points: list[Point] = [(offset, 0.0)]
    following = [*(one.at for one in history.generations[1:]), history.seconds]
    for one, then in zip(history.generations, following, strict=False):
        points.append((offset + one.at, float(one.world_size)))
        if one.until < then:
            points.append((offset + one.until, 0.0))
    points.append((offset + history.seconds, 0.0))
    return points


def _told(points: Sequence[Point]) -> str:
    return ", ".join(f"{value:g} at {moment(at)}" for at, value in points)


def _stacked(held: Mapping[str, Sequence[Point]]) -> list[list[Point]]:
    """Returns the jobs' lines on top of each other, the first at the bottom."""
    moments = sorted({at for points in held.values() for at, _ in points})
    sums, lines = [0.0] * len(moments), []
    for points in held.values():
        values = _values(points, moments)
        sums = [below + value for below, value in zip(sums, values, strict=True)]
        lines.append(list(zip(moments, sums, strict=True)))
    return lines


def _values(points: Sequence[Point], moments: Sequence[float]) -> list[float]:
    values, place, current = [], 0, 0.0
    for at in moments:
        while place < len(points) and points[place][0] <= at:
            current = points[place][1]
            place += 1
        values.append(current)
    return values
