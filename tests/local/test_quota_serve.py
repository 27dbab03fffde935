"""Projects share a machine: GPUs are lent, taken back and given again, and each job ends with the plain model."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.host import processes
from elastic_launcher.quota.history import read
from tests.support.launches import PATIENCE, Launcher, launched, until
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, read_ledgers, train_plain

SAMPLES, BATCH, MICRO, GPUS = 97, 24, 5, 3
PROJECTS = """\
apiVersion: elastic-quota/v1
growAfterSeconds: 0
waitSeconds: 600
projects:
- {name: nlp, guaranteed: 1}
- {name: vision, guaranteed: 2}
- {name: guest}
"""


class Machine:
    """A folder of jobs with a controller."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, folder / "jobs"
        self.controller: subprocess.Popen[bytes] | None = None
        (folder / "projects.yaml").write_text(PROJECTS)

    def serve(self) -> None:
        self.controller = subprocess.Popen(
            [sys.executable, "-m", "elastic_launcher", "quota", "serve", "projects.yaml", "--jobs", "jobs"]
            + ["--gpus", str(GPUS)],
            cwd=self.folder,
        )

    def end(self, number: signal.Signals) -> int:
        assert self.controller is not None
        self.controller.send_signal(number)
        return self.controller.wait(PATIENCE)

    def changes(self) -> list[tuple[str, int, int]]:
        path = self.jobs / "quota-history.jsonl"
        rows = read(path) if path.exists() else []
        return [(str(row["job"]).split("-")[0], row["before"], row["after"]) for row in rows]

    @contextlib.contextmanager
    def run(self, name: str, project: str, nodes: str) -> Iterator[Launcher]:
        folder = self.folder / name
        folder.mkdir()
        script = json.dumps({"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": None, "pace": 0.004})
        options = ["--name", name, "--project", project, "--nodes", nodes, "--max-batch-per-gpu", str(MICRO)]
        hints = ["--hints", str(self.jobs / "hints.json")]
        work_dir = self.jobs / name
        with launched(*options, *hints, "--", SCRIPT, script, cwd=folder, work_dir=work_dir) as job:
            yield job


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.serve()
    try:
        yield machine
    finally:
        if machine.controller is not None:
            machine.controller.kill()
            machine.controller.wait()


def size(job: Launcher) -> int:
    formed = job.events.of("generation_formed")
    return int(formed[-1]["world_size"]) if formed else 0


def finish(machine: Machine, name: str, job: Launcher) -> None:
    (machine.folder / name / "stop").touch()
    assert job.wait(2 * PATIENCE) == 0, job.stderr
    steps = assert_each_sample_once(read_ledgers(machine.folder / name), SAMPLES, BATCH, MICRO)
    assert_same_model(machine.folder / name, train_plain(SAMPLES, BATCH, steps))


def test_an_owner_gets_its_guarantee_from_a_borrower_and_a_guest_also_if_the_controller_dies(machine: Machine) -> None:
    with machine.run("borrower", "nlp", "1:2") as borrower, machine.run("guest", "guest", "1:1") as guest:
        until(lambda: size(borrower) == 2 and size(guest) == 1, "two jobs have all 3 GPUs", 3 * PATIENCE)
        with machine.run("owner", "vision", "2:2") as owner:
            until(lambda: ("guest", 1, 0) in machine.changes(), "GPUs are taken back", 2 * PATIENCE)
            assert machine.end(signal.SIGKILL) == -signal.SIGKILL
            machine.serve()
            until(lambda: size(owner) == 2, "the owner trains", 3 * PATIENCE)
            assert size(borrower) == 1
            until(lambda: any("step" in event for event in guest.events.of("quota_wait")), "the guest is paused")
            assert processes.find(str(guest.work_dir)) == []
            finish(machine, "owner", owner)
        until(
            lambda: any("step" in event for event in guest.events.of("quota_back")), "the guest goes on", 2 * PATIENCE
        )
        finish(machine, "guest", guest)
        finish(machine, "borrower", borrower)
    assert machine.end(signal.SIGTERM) == 0
    assert ("guest", 0, 1) in machine.changes()
