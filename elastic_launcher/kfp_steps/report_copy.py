"""Copies a run's report elsewhere while it trains: Kubeflow shows a step's outputs only after it ends well."""

from __future__ import annotations

import contextlib
import posixpath
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from elastic_launcher.checkpoint.storage import RemoteFolder, is_url
from elastic_launcher.events import EventError, read_events
from elastic_launcher.host.files import replacing
from elastic_launcher.host.modes import make_folder
from elastic_launcher.pipeline_step import Companion, going_on_beside, say
from elastic_launcher.report import write_report

COPY_SECONDS = 30.0
"""Between copies, as between the log's lines of progress."""
FILES = ("report.html", "report.md", "metrics.json", "events.jsonl")


def copied_to(place: str) -> Companion:
    """Returns what copies a run's report to a folder or URL, every :data:`COPY_SECONDS` and at the end.

    Each job has a folder of its own in there, named by its id: runs that share the place overwrite nothing.
    """

    @contextlib.contextmanager
    def beside(process: subprocess.Popen[str], folder: Path) -> Iterator[None]:
        def follow(over: threading.Event) -> None:
            told, said = "", False
            while not over.wait(COPY_SECONDS):
                told = _try(folder, place, told)
                if not (told or said) and (folder / "events.jsonl").exists():
                    with contextlib.suppress(OSError, EventError):
                        say(f"the report is kept in {own_folder(folder, place)}")
                        said = True

        try:
            with going_on_beside("report-copy", follow):
                yield
        finally:
            process.wait()
            _try(folder, place, "")

    return beside


def copy_report(folder: Path, place: str) -> None:
    """Copies a run's report, made of its events so far, to a folder named by its job; nothing before there are some.

    Raises:
        EventError: If the events can't be read.
        OSError: If the report can't be written there.
    """
    if not (folder / "events.jsonl").exists():
        return
    with tempfile.TemporaryDirectory(prefix="elastic-report-") as name:
        draft = Path(name)
        shutil.copyfile(folder / "events.jsonl", draft / "events.jsonl")
        write_report(draft)
        place = own_folder(draft, place)
        if is_url(place):
            remote = RemoteFolder(place)
            with remote.opened() as storage:
                storage.makedirs(remote.root, exist_ok=True)
                for file in FILES:
                    storage.put_file(str(draft / file), posixpath.join(remote.root, file))
            return
        make_folder(Path(place))
        for file in FILES:
            with open(draft / file, "rb") as source, replacing(Path(place) / file) as target:
                shutil.copyfileobj(source, target)


def own_folder(run: Path, place: str) -> str:
    """Returns the folder of a run's job in a place that jobs share.

    Raises:
        EventError: If the events can't be read.
        OSError: If they are not there.
    """
    started = next((event for event in read_events(run / "events.jsonl") if event.kind == "job_started"), None)
    job = str(started.get("job_id", "")) if started is not None else ""
    return posixpath.join(place, job) if job else place


def _try(folder: Path, place: str, told: str) -> str:
    """Copies the report, or prints an error once, and the training continues. Returns the message."""
    try:
        copy_report(folder, place)
    except (OSError, EventError, ValueError) as error:
        if str(error) != told:
            say(f"report_uri {place} can't be written: {error}")
        return str(error)
    return ""
