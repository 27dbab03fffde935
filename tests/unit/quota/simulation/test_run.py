"""What the figures of a simulation are, and which traces can't be simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_launcher.quota.projects import Project, Projects, QuotaError
from elastic_launcher.quota.simulation.courses import Amdahl
from elastic_launcher.quota.simulation.run import read_machines, simulated
from elastic_launcher.quota.simulation.simulate import Job

PROJECTS = Projects((Project("nlp", guaranteed=2), Project("vision", guaranteed=2, limit=3)))
NLP = Job("bert", 10.0, Amdahl(1000.0), 1, 4, project="nlp")
VISION = Job("resnet", 500.0, Amdahl(400.0), 2, 2, 2, project="vision")


def test_the_figures_are_those_that_a_person_computes() -> None:
    shown: list[tuple[int, int]] = []
    found = simulated([NLP], PROJECTS, {"a": 4}, seen=lambda now, complete, jobs: shown.append((complete, jobs)))
    # it starts at 11 s, trains from 41 s on 4 GPUs, and ends at 291 s
    assert (found["mean_completion_s"], found["p99_completion_s"], found["mean_wait_s"]) == (281.0, 281.0, 1.0)
    assert (found["seconds"], found["gpu_use"], found["mean_changes"]) == (281.0, round(4 * 280 / (4 * 281), 3), 0.0)
    nlp, vision = found["projects"]
    assert (nlp["jobs"], nlp["mean_held"], nlp["below_guarantee_s"]) == (1, round(4 * 280 / 281, 2), 0.0)
    assert (vision["jobs"], vision["mean_held"], vision["mean_wait_s"]) == (0, 0.0, None)
    assert (shown[0], shown[-1]) == ((0, 1), (1, 1))


def test_a_change_stops_jobs_that_restart() -> None:
    jobs = [replace(NLP, course=Amdahl(3000.0)), VISION]
    in_process, restart = (simulated(jobs, PROJECTS, {"a": 4}, in_process=one) for one in (True, False))
    assert (in_process["mean_stopped"], restart["mean_stopped"]) == (0.0, 1.0)  # bert shrinks and grows
    assert in_process["mean_completion_s"] < restart["mean_completion_s"]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (replace(NLP, project="lab"), "job bert: no project matches project lab; add one"),
        (replace(NLP, minimum=5, limit=5), "job bert can never run: it needs 5 GPUs, and there are 4"),
        (
            replace(VISION, minimum=4, limit=4),
            "job resnet can never run: it needs 4 GPUs, and the limit of project vision",
        ),
    ],
)
def test_a_job_that_can_never_run_is_named(one: Job, message: str) -> None:
    with pytest.raises(QuotaError, match=message):
        simulated([one], PROJECTS, {"a": 4})


def test_machines_are_read() -> None:
    assert read_machines("8") == {"machine-1": 8}
    assert list(read_machines("10x4").items())[::9] == [("machine-01", 4), ("machine-10", 4)]


@pytest.mark.parametrize("text", ["", "0", "0x8", "4x", "x8", "4x-1", "1e3", "999999x8", "2x8x2", "٤"])
def test_what_are_no_machines_is_refused(text: str) -> None:
    with pytest.raises(QuotaError, match="they must be a number of GPUs, or COUNTxGPUS"):
        read_machines(text)
