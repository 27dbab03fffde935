"""The controller's loop on one machine: a round on each change, at most once a second, and at least every 30 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from elastic_launcher.quota.controller import Controller
from elastic_launcher.quota.problems import Problems
from elastic_launcher.quota.projects import Projects, QuotaError
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.folder import JobFolder

ROUND_SECONDS = 30.0
DEBOUNCE_SECONDS = 1.0
LOOK_SECONDS = 0.25  # how soon a change in the folder is seen


class Machine:
    """One machine: the jobs of a folder, and a number of GPUs.

    Args:
        jobs: The folder.
        gpus: GPUs of the machine; None: what the projects document says.
        say: Takes a line for the log.
    """

    def __init__(self, jobs: JobFolder, gpus: int | None, say: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._gpus = gpus
        self._say = say
        self._unreadable: dict[str, str] = {}

    def accept(self, document: Projects) -> None:
        """Does nothing with projects that can be used here.

        Raises:
            QuotaError: If the document counts on what only a cluster has, or nothing says how many GPUs there are.
        """
        refuse_autoscale(without_cluster(document))
        gpus_of(document, self._gpus)

    def projects(self, document: Projects) -> Projects:
        """Returns the projects of the document.

        Raises:
            QuotaError: If the document counts on what only a cluster has.
        """
        return without_cluster(document)

    def world(self, projects: Projects) -> World:
        """Returns what is there.

        Raises:
            OSError: If the folder can't be read.
            QuotaError: If nothing says how many GPUs there are, or they are to come and go.
        """
        gpus = gpus_of(projects, self._gpus)
        refuse_autoscale(projects)
        jobs = self._jobs.jobs()
        for name, why in sorted(self._jobs.unreadable.items()):
            if self._unreadable.get(name) != why:
                self._say(f"{name}: its report can't be used: {why}")
        self._unreadable = dict(self._jobs.unreadable)
        return World(gpus, jobs)


def gpus_of(projects: Projects, given: int | None) -> int:
    """Returns how many GPUs there are: what a command says, else the document.

    Raises:
        QuotaError: If neither does.
    """
    if given is not None:
        return given
    if projects.capacity is None or projects.capacity.gpus is None:
        raise QuotaError('how many GPUs are there? Add "capacity: {gpus: N}" to the document, or give --gpus N')
    return projects.capacity.gpus


def without_cluster(document: Projects) -> Projects:
    """Returns the projects of a document that is used on one machine.

    Raises:
        QuotaError: If the document counts on what only a cluster has.
    """
    if document.capacity is not None and document.capacity.others:
        keys = ", ".join(f"capacity.{key}" for key in document.capacity.others)
        raise QuotaError(f"{keys}: only the controller of a cluster can read that (--kubernetes); leave it out here")
    return document


def refuse_autoscale(document: Projects) -> None:
    """Refuses a document with which machines are to come and go.

    Raises:
        QuotaError: If it is one.
    """
    if document.capacity is not None and document.capacity.autoscale is not None:
        raise QuotaError('"capacity.autoscale" is for a cluster: a machine has the GPUs that it has; leave it out')


def serve(controller: Controller, watched: Callable[[], object], stop: threading.Event) -> None:
    """Runs rounds until told to stop; after one that can't write, as on a full disk, it tries again.

    Args:
        controller: What decides and writes.
        watched: Returns something that differs once anything changed that a round depends on.
        stop: Set to end the loop.
    """
    problems = Problems(controller.say)
    while not stop.is_set():
        seen = watched()
        try:
            controller.round()
        except OSError as error:
            problems.tell(f"no round: {error}")
        else:
            problems.clear()
        began = time.monotonic()
        while not stop.wait(LOOK_SECONDS):
            waited = time.monotonic() - began
            if waited >= ROUND_SECONDS or (waited >= DEBOUNCE_SECONDS and watched() != seen):
                break


def marks(jobs: Path, *files: Path) -> Callable[[], object]:
    """Returns a function that tells changes in a folder of jobs, and in files, by their times and sizes."""

    def look() -> object:
        found = []
        for path in (*files, *sorted(jobs.glob("*/events.jsonl")), *sorted(jobs.glob("*/job.json"))):
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        return found

    return look
