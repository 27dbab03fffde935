"""Writes a job's report into its work directory."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from elastic_launcher.events import read_events
from elastic_launcher.report.metrics import Metrics, measure
from elastic_launcher.report.summary import summarize
from elastic_launcher.report.timeline import render


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it or what was there before.

    Raises:
        OSError: If it can't be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def write_report(work_dir: Path, html: Path | None = None) -> Metrics:
    """Writes ``report.html``, ``report.md`` and ``metrics.json``.

    Args:
        work_dir: The job's folder.
        html: Where the timeline goes instead.

    Raises:
        OSError: If there are no events, or the files can't be written.
    """
    events = read_events(work_dir / "events.jsonl")
    metrics = measure(events)
    write_atomically(html or work_dir / "report.html", render(events, metrics))
    write_atomically(work_dir / "report.md", summarize(events, metrics))
    write_atomically(work_dir / "metrics.json", json.dumps(metrics.to_dict(), indent=1) + "\n")
    return metrics
