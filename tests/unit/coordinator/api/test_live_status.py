from __future__ import annotations

import json

import pytest

from elastic_launcher.control.messages import Done, Log, Progress
from elastic_launcher.coordinator.api.live_status import live_status
from tests.support.played_job import Job, training


def test_the_status_of_a_job_that_trains() -> None:
    job = training(2)
    job.report(1, Progress(30, 1, 0.25))
    job.report(1, Log(30, 0, {"accuracy": 0.5}))
    job.target(3)
    job.join(3)
    found = json.loads(json.dumps(live_status(job.state)))
    assert (found["phase"], found["generation"], found["world_size"], found["step"]) == ("training", 1, 2, 30)
    assert found["target"]["nodes"] == 3
    assert [node["phase"] for node in found["nodes"]] == ["admitted", "admitted", "starting"]
    assert found["nodes"][1]["members"][0]["rank"] == 1
    assert found["nodes"][2]["members"][0]["rank"] is None
    assert found["progress"]["loss"] == 0.25
    assert found["log"] == {"accuracy": 0.5}
    assert found["formation"] is None


def test_a_target_that_names_nodes_is_json() -> None:
    job = training(1)
    job.target(2, leave=frozenset({3, 1}))
    shown = json.loads(json.dumps(live_status(job.state)))
    assert (shown["target"]["nodes"], shown["target"]["leave"]) == (2, [1, 3])


def test_a_formation_under_way_is_shown() -> None:
    job = training(2)
    job.target(1)
    assert live_status(job.state)["formation"]["leavers"] == [2]


@pytest.mark.parametrize("expected", ["waiting", "starting", "training", "finishing", "ending"])
def test_the_phase_in_a_word(expected: str) -> None:
    jobs = {"waiting": Job(), "starting": Job(target=1)}
    job = jobs.get(expected) or training(1)
    if expected in ("finishing", "ending"):
        job.report(1, Done(9))
    if expected == "ending":
        job.rank_ended(1, 3)
    assert live_status(job.state)["phase"] == expected
