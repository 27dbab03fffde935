"""A training as one step of a pipeline, here and now: what the fronts of Kubeflow and Hera have in common.

:func:`train` turns a step's options into the arguments of ``elastic-launcher run``, runs that command as a child whose
lines the step shows, and reads the step's outputs from what the run left behind.
"""

from __future__ import annotations

import collections
import contextlib
import html
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_launcher.config import UNNAMED, ExitCode, check_work_dir
from elastic_launcher.events import EventError, finite, read_events
from elastic_launcher.host.script_file import script_path, write_script
from elastic_launcher.options import ConfigError, command_line, without_edges
from elastic_launcher.report.words import first_line

TAIL_LINES = 30
"""How many of the last lines a failed step carries in its message: a traceback and what led to it."""
TAIL_CHARACTERS = 16 * 1024
"""Of these lines, and of the reason: a following step gets both in one word of its command, at most 128 KiB."""

OURS = "elastic-launcher: "
"""What the launcher's own lines begin with."""

METRICS = (
    "world_size_final",
    "resizes_total",
    "goodput",
    "samples_per_second",
    "steps",
    "samples",
    "duration_seconds",
    "gpu_seconds",
    "pause_seconds",
    "nodes_lost",
)
"""The keys that every run has, so that runs can be compared."""
LOSS = "loss"
"""The metric of a run whose script logs its loss."""

REASONS: dict[int, str] = {
    ExitCode.SCRIPT_FAILED: "the training script failed",
    ExitCode.BAD_USAGE: "bad usage, configuration or hints: nothing was started",
    ExitCode.LAUNCHER_FAILED: "the launcher itself failed",
    ExitCode.STOPPED: "the training was preempted or stopped",
    ExitCode.NO_QUOTA: "no quota for the minimum number of nodes",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}


Companion = Callable[["subprocess.Popen[str]", Path], AbstractContextManager[None]]
"""What goes on beside a run, made of its launcher's process and its folder."""


class StepFailed(RuntimeError):
    """The training ended with another exit code than 0; the message has the reason, in one line if the run gave one.

    Attributes:
        exit_code: The launcher's.
        folder: What the run has left behind; None where it was refused before it had a folder.
        account: The same with the last lines of the run, for whoever has not just read them in its log.
    """

    def __init__(
        self, message: str, exit_code: int = ExitCode.SCRIPT_FAILED, folder: Path | None = None, account: str = ""
    ) -> None:
        super().__init__(message)
        self.account = account or message
        self.exit_code = exit_code
        self.folder = folder


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run has left behind.

    Attributes:
        work_dir: The run's folder.
        metrics: The keys of :data:`METRICS` and the last value of each number that the script gave to ``job.log``.
        timeline: The timeline as one HTML document.
        summary: The summary in Markdown.
    """

    work_dir: str
    metrics: dict[str, float]
    timeline: str
    summary: str


def say(message: str) -> None:
    """Tells the step's reader something, in its log."""
    print(f"elastic-launcher: {message}", flush=True)


@contextlib.contextmanager
def going_on_beside(name: str, follow: Callable[[threading.Event], None]) -> Iterator[None]:
    """Has a thread of that name do something while the block runs: until the event is set."""
    over = threading.Event()
    thread = threading.Thread(target=follow, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def what_to_run(script: str, module: str) -> list[str]:
    """Returns a script or a module as the command line names it after ``--``.

    Raises:
        ConfigError: If not exactly one of them is given.
    """
    if bool(script) == bool(module):
        raise ConfigError("give either script or module")
    return ["-m", module] if module else [without_edges(script)]


def run_arguments(
    script: str, module: str, arguments: Sequence[str], options: Mapping[str, object], script_copy: Path
) -> list[str]:
    """Returns the arguments of ``elastic-launcher`` for one run.

    Args:
        script: A script's path, or its text: what holds a line break is text, and is written to ``script_copy``.
        module: The module to run instead of a script, as ``python -m`` would.
        arguments: What the script is given.
        options: Values by the keys of the option table; None and "" leave an option out.
        script_copy: Where a script's text goes.

    Raises:
        ConfigError: If not exactly one of ``script`` and ``module`` is given.
    """
    what = what_to_run(script, module)
    if "\n" in script.strip():  # a word of a command has room for 128 KiB
        write_script(script, script_copy)
        what = [str(script_copy)]
    return ["run", *command_line(options), "--", *what, *arguments]


def train(
    *,
    script: str,
    module: str,
    arguments: Sequence[str],
    options: Mapping[str, object],
    work_dir: str,
    artifacts: str,
    environment: Mapping[str, str] | None = None,
    beside: Sequence[Companion] = (),
) -> Trained:
    """Runs a training to its end, showing its lines.

    Args:
        script: See :func:`run_arguments`.
        module: See :func:`run_arguments`.
        arguments: What the script is given.
        options: Options of ``elastic-launcher run`` but for the work directory.
        work_dir: The run's folder; "" means a new one beside the step's artifacts.
        artifacts: The folder of the step's artifacts.
        environment: Variables that the run has besides those of this process.
        beside: What goes on while it runs.

    Raises:
        ConfigError: If there is nothing to run, or ``work_dir`` is a URL.
        StepFailed: If the training did not end with exit code 0.
    """
    check_work_dir(work_dir)
    work_dir = without_edges(work_dir)
    folder = Path(work_dir) if work_dir else _new_folder(Path(artifacts))
    script_copy = script_path(folder, str(options.get("name") or UNNAMED), script)
    try:
        argv = run_arguments(script, module, arguments, {**options, "work_dir": folder}, script_copy)
    except OSError as error:
        code = ExitCode.LAUNCHER_FAILED
        why = f"the text of the script can't be written to {script_copy}: {error} (exit code {int(code)})"
        raise StepFailed(why, code) from error
    command = [sys.executable, "-m", "elastic_launcher", *argv]
    earlier = _last_end(folder)
    exit_code, last_lines = _stream(command, environment or {}, folder, beside)
    if exit_code != 0:
        reason = f"{REASONS.get(exit_code, 'the launcher died')} (exit code {exit_code})"
        lines = "".join(line if line.endswith("\n") else f"{line}\n" for line in last_lines)
        why = f"{reason}{_said(folder, earlier, last_lines)}"
        account = f"{reason}. Its last lines:\n{lines[-TAIL_CHARACTERS:]}{why[:TAIL_CHARACTERS]}"
        raise StepFailed(why, exit_code, folder, account)
    return left_behind(folder)


def _last_end(folder: Path) -> Mapping[str, Any]:
    """Returns the event with which the last run in a folder has ended; empty if none has."""
    with contextlib.suppress(OSError, EventError):
        ends = [event for event in read_events(folder / "events.jsonl") if event.kind == "job_finished"]
        return dict(ends[-1]) if ends else {}
    return {}


def _said(folder: Path, earlier: Mapping[str, Any], last_lines: Sequence[str]) -> str:
    """Returns how a job's own message names its end, or its launcher's last line; with that a red step's log ends.

    ``earlier`` is the end of the run before this one, which a launcher that was refused has left as it was.
    """
    end = _last_end(folder)
    if end != earlier and (said := first_line(end.get("message"))):
        return f": {said}"
    own = [line.removeprefix(OURS).strip() for line in last_lines if line.startswith(OURS)]
    return f": {own[-1]}" if own else ""


def left_behind(folder: Path) -> Trained:
    """Returns what a run that has ended has left in its folder; of a report that could not be written, that fact."""
    return Trained(
        work_dir=str(folder),
        metrics=_metrics(folder),
        timeline=_report(folder / "report.html"),
        summary=_report(folder / "report.md"),
    )


def nothing_left(why: str) -> Trained:
    """Returns what a step has that was refused before its run had a folder: zeros, and why in place of a report."""
    told = f"Nothing was started: {why}\n"
    return Trained("", dict.fromkeys(METRICS, 0), f"<pre>{html.escape(told, quote=False)}</pre>\n", told)


def _new_folder(parent: Path) -> Path:
    """Returns a folder name that is not taken: a task that its runner tries again finds the first one in place."""
    taken = {path.name for path in parent.glob("job*")}
    return next(parent / name for name in map("job-{}".format, range(1, len(taken) + 2)) if name not in taken)


def _stream(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, beside: Sequence[Companion]
) -> tuple[int, list[str]]:
    """Runs ``command``, prints its lines as they come, and returns its exit code and its last lines."""
    last_lines: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                text=True,
                errors="replace",
            )
        )
        assert process.stdout is not None
        for companion in beside:
            stack.enter_context(companion(process, folder))
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last_lines.append(line)
        except KeyboardInterrupt:  # the launcher has had it too, from the same terminal
            process.wait()
            raise
        except OSError:  # nobody reads the step's lines any more: whoever ran it has gone
            process.terminate()
            raise
    return process.returncode, list(last_lines)


def _report(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        return f"The training has ended, and there is no {path.name}: {error.strerror}. The step's log says why.\n"


def _metrics(folder: Path) -> dict[str, float]:
    """Returns the run's metrics and the last values that the script logged, but for what no chart can show."""
    try:
        measured = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a full disk; the events are what it would have been made from
        from elastic_launcher.report.metrics import measure

        try:
            measured = measure(list(read_events(folder / "events.jsonl"))).to_dict()
        except (OSError, EventError) as error:
            if isinstance(error, EventError):  # otherwise nothing was started
                say(f"the run's numbers are not known, and given as 0: {error}")
            measured = {"logged": {}, **dict.fromkeys(METRICS, 0)}
    known = {LOSS: measured.get(LOSS), **measured["logged"]}
    logged = {name: value for name, value in known.items() if finite(value) is not None}
    return {**logged, **{key: measured.get(key, 0) for key in METRICS}}
