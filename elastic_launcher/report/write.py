"""Writes a job's report into its work directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from elastic_launcher.events import read_events
from elastic_launcher.host.files import replacing
from elastic_launcher.report.history import relate
from elastic_launcher.report.metrics import Metrics, measure
from elastic_launcher.report.summary import summarize
from elastic_launcher.report.timeline import render


def write_report(work_dir: Path, tell: Callable[[str], object] = lambda _: None) -> Metrics:
    """Writes ``report.html``, ``report.md`` and ``metrics.json``, each so that a reader never sees half of it.

    ``tell`` takes a message about lines of the events that can't be read, as in `read_events`.

    Raises:
        EventError: If its events can't be read.
        OSError: If there are none, or the files can't be written.
    """
    events = read_events(work_dir / "events.jsonl", tell)
    metrics, history = measure(events), relate(events)
    write_atomically(work_dir / "metrics.json", json.dumps(metrics.to_dict(), indent=1, allow_nan=False) + "\n")
    write_atomically(work_dir / "report.md", summarize(history, metrics))
    write_atomically(work_dir / "report.html", render(history, metrics))
    return metrics


def write_timeline(work_dir: Path, html: Path, tell: Callable[[str], object] = lambda _: None) -> Metrics:
    """Writes the timeline alone, wherever it is wanted, and nothing into the work directory; ``tell`` as above.

    Raises:
        EventError: If the events can't be read.
        OSError: If there are none, or ``html`` can't be written.
    """
    events = read_events(work_dir / "events.jsonl", tell)
    metrics = measure(events)
    write_atomically(html, render(relate(events), metrics))
    return metrics


def framed_timeline(work_dir: Path) -> str:
    """Returns the timeline for a small frame of a white page.

    Raises:
        EventError: If the events can't be read.
        OSError: If there are none.
    """
    events = read_events(work_dir / "events.jsonl")
    return render(relate(events), measure(events), framed=True)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it or what was there before; a device or a pipe is just written to.

    Raises:
        OSError: If it can't be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path, mode=0o644, lasting=True) as file:
        file.write(text.encode(errors="replace"))
