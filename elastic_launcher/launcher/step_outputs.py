"""Writes the outputs of a pipeline step: one file for each value, in the folder that a variable names.

Argo reads them as output parameters once the step has ended, however it ended. Without the variable nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elastic_launcher import variables
from elastic_launcher.events import Event, EventError, read_events
from elastic_launcher.report.metrics import measure

OUTPUTS = {
    "exit_code": "-1",
    "reason": "",
    "steps": "0",
    "world_size_final": "0",
    "resizes_total": "0",
    "goodput": "0",
    "logged": "{}",
    "job_dir": "",
    "checkpoint": "",
}
"""Their names, as in Kubeflow; and their values where the launcher was killed."""

_CHECKPOINT = {"checkpoint_saved": "path", "job_started": "resumed_path"}
"""The events that name a checkpoint, and where: a retry elsewhere has an event log of its own."""


def outputs_of(events: Sequence[Event], exit_code: int, reason: str, job_dir: str) -> dict[str, str]:
    """Returns a step's outputs: how the job ended in words, its folder; nothing of a job that was not started."""
    metrics = measure(events)
    paths = (event.get(_CHECKPOINT[event.kind]) for event in events if event.kind in _CHECKPOINT)
    return {
        "exit_code": str(int(exit_code)),
        "reason": reason,
        "steps": str(metrics.steps),
        "world_size_final": str(metrics.world_size_final),
        "resizes_total": str(metrics.resizes_total),
        "goodput": str(metrics.goodput),
        "logged": json.dumps(metrics.logged),
        "job_dir": job_dir,
        "checkpoint": next((path for path in reversed(list(paths)) if path), ""),
    }


def tell_outputs(
    exit_code: int,
    reason: str,
    job_dir: Path | None,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Writes a step's outputs where the environment names a folder for them.

    An error in that is said, and does not change the job's outcome.
    """
    folder = environment.get(variables.STEP_OUTPUTS)
    if not folder:
        return
    try:
        events = read_events(job_dir / "events.jsonl") if job_dir is not None else []
        told = outputs_of(events, exit_code, reason, str(job_dir or ""))
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in told.items():
            # the name of a folder may be no UTF-8
            (Path(folder) / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except (OSError, EventError) as error:
        say(f"the step's outputs could not be written to {folder}: {error}")
