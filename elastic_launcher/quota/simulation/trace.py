"""Reads a trace of jobs for a simulation, in one of two forms of comma-separated values.

The plain form has the columns ``name,submitted,gpus,min,max,seconds``: GPUs that the owner asked for, the fewest and
the most, and the seconds of work on one GPU. The form of the traces of Pollux (Qiao et al., 2021) has
``name,time,application,num_replicas,batch_size``, with the applications' profiles in a folder of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from elastic_launcher.quota.simulation.adaptive_batch import AdaptiveBatch
from elastic_launcher.quota.simulation.courses import Amdahl, Application, FixedBatch, Rows
from elastic_launcher.quota.simulation.physics import Spread
from elastic_launcher.quota.simulation.simulate import Course, Job
from elastic_launcher.quota.simulation.table import Row, TraceError, read_header, read_table

PLAIN = ("name", "submitted", "gpus", "min", "max", "seconds")
PLAIN_MORE = ("serial", "delay", "project", "priority")
PROFILED = ("name", "time", "application", "num_replicas", "batch_size")
FIRST_GPUS = 4  # on which a job may start whose batch adapts: those of a machine
MICRO_BATCH = {"yolov3": 8}  # the largest of a GPU, where that is not the largest that was measured


def read_trace(path: Path, profiles: Path | None = None, *, adaptive: bool = False) -> list[Job]:
    """Returns the jobs of a trace.

    Args:
        path: The file.
        profiles: The folder of the applications' profiles; by default ``traces`` beside the file's folder.
        adaptive: Whether jobs choose their batch by themselves. The trace's batch sizes and numbers of GPUs then do not
            count: a job may start on as many GPUs as a machine of the traces has.

    Raises:
        TraceError: If the file or a profile can't be read; with file, line, column and what must be there.
    """
    if "application" in read_header(path):
        jobs = _profiled(path, profiles or path.resolve().parent.parent / "traces", adaptive)
    elif adaptive:
        raise TraceError(
            f"{path}: its jobs have no batch that could adapt; that needs the columns {', '.join(PROFILED)}"
        )
    else:
        jobs = [_plain(row) for row in read_table(path, PLAIN, PLAIN_MORE)]
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise TraceError(f'{path}: two jobs are named "{job.name}"; each name must be there once')
        seen.add(job.name)
    return jobs


def _plain(row: Row) -> Job:
    least, request = row.whole("min"), row.whole("gpus")
    most = row.whole("max", least)
    if not least <= request <= most:
        raise row.error("gpus", f"{least} to {most}, as min and max say")
    course = Amdahl(row.number("seconds"), row.number("serial", most=1.0, default=0.0))
    if not course.seconds:
        raise row.error("seconds", "a number above 0")
    return Job(
        name=row.text("name"),
        submitted=row.number("submitted"),
        course=course,
        request=request,
        limit=most,
        minimum=least,
        delay=row.number("delay", default=30.0),
        project=row.text("project", "default"),
        priority=row.whole("priority", 0, default=0),
    )


def _profiled(path: Path, profiles: Path, adaptive: bool) -> list[Job]:
    courses: dict[str, AdaptiveBatch] = {}
    jobs = []
    for row in read_table(path, PROFILED):
        name = row.text("application")
        if name not in courses:
            if not (profiles / name).is_dir():
                raise row.error("application", f"the name of a folder in {profiles}")
            courses[name] = AdaptiveBatch(read_application(profiles / name))
        application, batch, request = courses[name].application, row.whole("batch_size"), row.whole("num_replicas")
        if not min(application.epochs) <= batch <= max(application.epochs):
            measured = f"{min(application.epochs)} to {max(application.epochs)}"
            raise row.error("batch_size", f"{measured}, as {profiles / name} has it")
        limit = min(application.gpus, batch // application.least)
        if request > limit:
            raise row.error("num_replicas", f"{limit} at most: a GPU has {application.least} samples or more")
        course: Course = FixedBatch(application, batch)
        if adaptive:
            course, limit = courses[name], courses[name].limit
            request = min(FIRST_GPUS, limit)
        jobs.append(Job(row.text("name"), row.number("time"), course, request, limit))
    return jobs


def read_application(folder: Path) -> Application:
    """Returns the profile of an application.

    Args:
        folder: It has ``placements.csv``, ``scalability.csv`` and a ``validation-BATCH.csv`` for each batch size.

    Raises:
        TraceError: If one of these is missing or wrong.
    """
    times: dict[Spread, dict[int, list[list[float]]]] = {}
    larger: dict[tuple[int, int], dict[int, list[list[float]]]] = {}
    for row in read_table(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
        row.whole("placement")
        spread = tuple(sorted(map(int, row.text("placement"))))
        for of_one in (times.setdefault(spread, {}), larger.setdefault((len(spread), sum(spread)), {})):
            of_one.setdefault(row.whole("local_bsz"), []).append(_seconds(row))
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    for row in read_table(folder / "scalability.csv", columns):
        key = row.whole("num_nodes"), row.whole("num_replicas")
        larger.setdefault(key, {}).setdefault(row.whole("local_bsz"), []).append(_seconds(row))
    means = {spread: _means(one) for spread, one in times.items()}
    most = MICRO_BATCH.get(folder.name) or int(max(rows[-1, 0] for rows in means.values()))
    return Application(means, {key: _means(one) for key, one in larger.items()}, _epochs(folder), most)


def _seconds(row: Row) -> list[float]:
    return [row.number("step_time"), row.number("sync_time")]


def _means(of_one: Mapping[int, list[list[float]]]) -> Rows:
    """Returns rows of micro-batch and seconds, each the mean of what was measured."""
    return np.array([[size, *np.mean(of_one[size], axis=0)] for size in sorted(of_one)])


def _epochs(folder: Path) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        size = path.stem.removeprefix("validation-")
        if not size.isdecimal():
            raise TraceError(f"{path}: the file's name must be validation-BATCH.csv, BATCH a batch size")
        rows = read_table(path, ("progress", "grad_sqr", "grad_var"), ("iteration", "metric"))
        found[int(size)] = np.array([[row.number(one) for one in ("progress", "grad_sqr", "grad_var")] for row in rows])
    if not found:
        raise TraceError(f"{folder}: no validation-BATCH.csv; there must be one for each batch size")
    if len({len(rows) for rows in found.values()}) > 1:
        raise TraceError(f"{folder}: the validation-BATCH.csv have different numbers of epochs; cut them to the fewest")
    return found
