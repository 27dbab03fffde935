"""What the quota controller reads of a job's status, and which reports it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.config import JobConfig
from elastic_launcher.quota.jobs import Job, ReportError, job_of
from elastic_launcher.quota.scheduling import ANYWHERE, scheduling_of
from elastic_launcher.report.state import fold
from elastic_launcher.report.status import document
from tests.support.histories import START, Story


def status(story: Story, alive: bool | None = True, later: float = 0.0, **options: Any) -> dict[str, Any]:
    """Returns a job's status as the launcher writes it, after a trip as JSON."""
    config = JobConfig(**{"script": "bert.py", "min_nodes": 1, "max_nodes": 4, "nproc_per_node": 2, **options})
    job = {"id": "bert-1f2e", "created": START, "config": config.to_dict()}
    found = document(fold(story.events), job, {}, alive=alive, now=story.now + later)
    return dict(json.loads(json.dumps(found)))


def trained() -> Story:
    """1 -> 2 nodes of 2 ranks, by a hint."""
    story = Story(nproc_per_node=2, max_nodes=4).hint(2, 2, 8).start_nodes(1).later(3).form(1, cause="start").train(9)
    return story.hint(2, 4, 8).start_nodes(2).later(4).form(1, 2).train(9)


POOL = {"nodeSelector": {"pool": "a100"}}
SPOT = [{"key": "spot", "operator": "Exists"}]
GOOD = status(trained(), priority=5, project="nlp", wait_for_quota=60.0)


def changed(**fields: Any) -> dict[str, Any]:
    """Returns the good report with other fields."""
    return {**GOOD, "demand": {**GOOD["demand"], **fields}}


def by_size(**fields: Any) -> dict[str, Any]:
    """Returns the goodput of a job on a number of ranks."""
    return {"ranks": 2, "goodput": 90.5, "batch": 64, "measured": True, **fields}


def test_the_goodput_of_a_job_is_known_by_size() -> None:
    found = job_of(changed(goodput=[by_size(), by_size(ranks=4, goodput=170, measured=False)]))
    assert found.goodput == {2: 90.5, 4: 170.0}


def test_a_job_of_an_older_version_reports_no_goodput() -> None:
    older = {key: value for key, value in GOOD["demand"].items() if key != "goodput"}
    assert job_of({**GOOD, "demand": older}).goodput == {}
    assert job_of(changed(goodput=[])).goodput == {}


def test_the_status_of_a_job_that_trains_is_a_job() -> None:
    job = job_of(GOOD)
    assert (job.id, job.match) == ("bert-1f2e", {"job": "bert", "project": "nlp", "id": "bert-1f2e"})
    assert (job.minimum, job.maximum, job.sizes, job.held) == (2, 8, (2, 4, 6, 8), 4)
    assert (job.priority, job.waits, job.finished) == (5, 60.0, False)
    assert (job.following, job.following_generation, job.changes) == (4, 2, 1)
    assert (job.submitted_at, job.reported_at) == (START, GOOD["demand"]["reported"])
    assert job.training_since == pytest.approx(START + 3.0, abs=0.1)
    assert job.start_seconds == pytest.approx(4.0, abs=0.1)
    assert sorted(job.speeds) == [2, 4] and job.speeds[4] > job.speeds[2] > 0
    assert job.steps_left == GOOD["total_steps"] - GOOD["step"]
    assert job.service == pytest.approx(2 * (25 + 13), abs=3)


@pytest.mark.parametrize("code", [0, 1, 75, 76])
def test_a_job_that_has_ended_is_finished_and_holds_nothing(code: int) -> None:
    job = job_of(status(trained().finish(code)))
    assert (job.finished, job.held, job.training_since) == (True, 0, None)


def test_a_job_whose_launcher_was_killed_is_finished_once_its_nodes_must_have_ended() -> None:
    killed = status(trained(), alive=False, later=20.0, orphan_timeout=60.0)
    assert (job_of(killed).finished, job_of(killed).held) == (False, 4)
    over = status(trained(), alive=False, later=100.0, orphan_timeout=60.0)
    assert (job_of(over).finished, job_of(over).held) == (True, 0)


def test_a_job_that_has_just_begun_follows_nothing() -> None:
    job = job_of(status(Story(nproc_per_node=2)))
    assert (job.following, job.following_generation, job.speeds, job.steps_left) == (None, None, {}, None)
    assert (job.held, job.training_since, job.start_seconds, job.finished) == (0, None, None, False)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"held": -1}, "Expected `int` >= 0 - at `demand.held`"),
        ({"held": 100_001}, "Expected `int` <= 100000 - at `demand.held`"),
        ({"held": "4"}, "Expected `int`, got `str` - at `demand.held`"),
        ({"held": True}, "Expected `int`, got `bool` - at `demand.held`"),
        ({"held": 4.0}, "Expected `int`, got `float` - at `demand.held`"),
        ({"held": None}, "Expected `int`, got `null` - at `demand.held`"),
        ({"minimum": 0}, "Expected `int` >= 1 - at `demand.minimum`"),
        ({"minimum": -2}, "Expected `int` >= 1 - at `demand.minimum`"),
        ({"minimum": 10}, "demand.minimum is 10, above demand.maximum, 8"),
        ({"minimum": 3}, "demand.minimum is 3 and demand.maximum 8: they must be multiples of demand.per_node, 2"),
        ({"maximum": 9}, "multiples of demand.per_node, 2"),
        ({"maximum": 10**30}, "Expected `int` <= 100000 - at `demand.maximum`"),
        ({"per_node": 0}, "at `demand.per_node`"),
        ({"priority": 1001}, "Expected `int` <= 1000 - at `demand.priority`"),
        ({"priority": -1001}, "Expected `int` >= -1000 - at `demand.priority`"),
        ({"match": {}}, "demand.match has no id"),
        ({"match": {"id": ""}}, "at `demand.match[...]`"),
        ({"match": {"id": 7}}, "Expected `str`, got `int` - at `demand.match[...]`"),
        ({"match": {"id": "x" * 1001}}, "at `demand.match[...]`"),
        ({"match": "id=bert"}, "Expected `object`, got `str` - at `demand.match`"),
        ({"submitted": -1.0}, "at `demand.submitted`"),
        ({"submitted": math.nan}, "at `demand.submitted`"),
        ({"submitted": START + 9000}, "demand.submitted is 1795253000, later than demand.reported, 1795244025"),
        ({"started_training": START + 9000}, "demand.started_training is 1795253000.0, later than demand.reported"),
        ({"reported": math.inf}, "at `demand.reported`"),
        ({"waits": -1}, "at `demand.waits`"),
        ({"waits": math.inf}, "at `demand.waits`"),
        ({"following": {"allowed": -1}}, "at `demand.following.allowed`"),
        ({"following": {"allowed": 2, "generation": 1.5}}, "at `demand.following.generation`"),
        ({"following": 4}, "at `demand.following`"),
        ({"speeds": {"2": math.nan}}, "Expected `float` > 1e-09 - at `demand.speeds[...]`"),
        ({"speeds": {"2": 5e-324}}, "Expected `float` > 1e-09 - at `demand.speeds[...]`"),  # its inverse is none
        ({"speeds": {"2": 0}}, "Expected `float` > 1e-09 - at `demand.speeds[...]`"),
        ({"speeds": {"2": -3.5}}, "Expected `float` > 1e-09 - at `demand.speeds[...]`"),
        ({"speeds": {"2": math.inf}}, "at `demand.speeds[...]`"),
        ({"speeds": {"2": 1e300}}, "at `demand.speeds[...]`"),
        ({"speeds": {"2": "fast"}}, "Expected `float`, got `str` - at `demand.speeds[...]`"),
        ({"speeds": {"0": 1.0}}, "at `key` in `demand.speeds`"),
        ({"speeds": {"two": 1.0}}, "at `key` in `demand.speeds`"),
        ({"goodput": {"2": 1.0}}, "Expected `array`, got `object` - at `demand.goodput`"),
        ({"goodput": [{"ranks": 2, "goodput": 9.0, "batch": 8}]}, "missing required field `measured`"),
        ({"goodput": [by_size(ranks=0)]}, "Expected `int` >= 1 - at `demand.goodput[0].ranks`"),
        ({"goodput": [by_size(ranks=100_001)]}, "Expected `int` <= 100000 - at `demand.goodput[0].ranks`"),
        ({"goodput": [by_size(goodput=0.0)]}, "Expected `float` > 1e-09 - at `demand.goodput[0].goodput`"),
        ({"goodput": [by_size(goodput=math.nan)]}, "Expected `float` > 1e-09 - at `demand.goodput[0].goodput`"),
        (
            {"goodput": [by_size(goodput=1e300)]},
            "Expected `float` <= 1000000000000.0 - at `demand.goodput[0].goodput`",
        ),
        ({"goodput": [by_size(goodput="fast")]}, "Expected `float`, got `str` - at `demand.goodput[0].goodput`"),
        ({"goodput": [by_size(batch=0)]}, "Expected `int` >= 1 - at `demand.goodput[0].batch`"),
        ({"goodput": [by_size(measured="yes")]}, "Expected `bool`, got `str` - at `demand.goodput[0].measured`"),
        (
            {"goodput": [by_size(), by_size(goodput=2.0)]},
            "demand.goodput has 2 entries for 1 sizes; it must have one for each",
        ),
        ({"steps_left": -1}, "at `demand.steps_left`"),
        ({"steps_left": 10**40}, "at `demand.steps_left`"),
        ({"start_seconds": -0.1}, "at `demand.start_seconds`"),
        ({"changes": -1}, "at `demand.changes`"),
        ({"service": -1}, "at `demand.service`"),
        ({"service": math.nan}, "at `demand.service`"),
        ({"service": 1e300}, "at `demand.service`"),
    ],
)
def test_an_absurd_or_contradictory_report_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError) as error:
        job_of(changed(**wrong))
    assert str(error.value).startswith("the report of job 'bert-20261121-063320-1f2e' can't be used: ")
    assert said in str(error.value)


@pytest.mark.parametrize("field", ["minimum", "maximum", "per_node", "match", "submitted", "reported", "held"])
def test_a_report_without_a_field_that_is_needed_is_refused_by_its_name(field: str) -> None:
    found = {name: value for name, value in GOOD["demand"].items() if name != field}
    with pytest.raises(ReportError, match=f"missing required field `{field}` - at `demand`"):
        job_of({**GOOD, "demand": found})


def test_a_job_that_has_ended_and_says_that_it_holds_gpus_is_refused() -> None:
    with pytest.raises(ReportError, match=r"demand.held is 4, and the job has ended \(stopped\)"):
        job_of({**GOOD, "state": "stopped"})


@pytest.mark.parametrize(
    "fields",
    [
        {"match": {"id": "bert-1f2e", "project": "\ud800"}},
        {"scheduling": {"guaranteed": {"nodeSelector": {"\ud800": "a100"}}, "overQuota": {}}},
    ],
)
def test_a_report_that_no_file_can_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match=r"it has the character '\\ud800', which is no text"):
        job_of(json.loads(json.dumps(changed(**fields))))


@pytest.mark.parametrize("wrong", [[], "running", None, 7])
def test_what_is_no_object_is_refused(wrong: Any) -> None:
    with pytest.raises(ReportError, match="it must be a JSON object"):
        job_of(wrong)


def test_a_status_of_a_later_version_is_refused() -> None:
    with pytest.raises(ReportError, match="it is of version 2, and this controller reads version 1"):
        job_of({**GOOD, "v": 2})


def test_fields_of_a_later_version_are_left_aside() -> None:
    assert job_of({**changed(of_a_later_version={"a": 1}), "of_a_later_version": 1}) == job_of(GOOD)


def old(**fields: Any) -> dict[str, Any]:
    """Returns the status of a version that reports no demand."""
    return {**{name: value for name, value in GOOD.items() if name != "demand"}, **fields}


def test_an_older_job_needs_what_its_nodes_hold() -> None:
    job = job_of(old(told=START + 40.0))
    assert (job.id, job.match) == ("bert-20261121-063320-1f2e", {"job": "bert"})
    assert (job.minimum, job.maximum, job.sizes, job.held) == (4, 4, (4,), 4)
    assert (job.submitted_at, job.reported_at, job.following, job.following_generation) == (START, START + 40, 4, None)
    assert (job.speeds, job.waits, job.finished, job.training_since) == ({}, 0.0, False, START)
    assert job.steps_left == GOOD["total_steps"] - GOOD["step"]


@pytest.mark.parametrize(
    ("state", "finished", "minimum"), [("waiting", False, 1), ("starting", False, 1), ("finished", True, 1)]
)
def test_an_older_job_that_holds_nothing_needs_one_gpu(state: str, finished: bool, minimum: int) -> None:
    nodes = [{"node": 1, "phase": "trained", "members": [1, 2], "ranks": [0, 1]}] if finished else []
    job = job_of(old(state=state, nodes=nodes, hint=None))
    assert (job.held, job.minimum, job.maximum, job.finished) == (0, minimum, minimum, finished)
    assert (job.training_since, job.following) == (None, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"job": None}, "Expected `str`, got `null` - at `job`"),
        ({"started": math.nan}, "at `started`"),
        ({"nodes": "many"}, "at `nodes`"),
        ({"nodes": [{"phase": "training", "members": [1] * 100_001}]}, "its nodes have 100001 ranks, more than 100000"),
        ({"hint": {"allowed": -2}}, "at `hint.allowed`"),
        ({"step": -1}, "at `step`"),
    ],
)
def test_an_older_report_that_is_absurd_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError) as error:
        job_of(old(**wrong))
    assert said in str(error.value)


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD["demand"])), VALUES), st.sampled_from(["running", "stopped", "?"]))
def test_whatever_is_reported_is_a_job_that_makes_sense_or_refused(fields: dict[str, Any], state: str) -> None:
    try:
        job = job_of({**changed(**fields), "state": state})
    except ReportError:
        return
    assert isinstance(job, Job)
    assert 1 <= job.minimum <= job.maximum <= 100_000 and job.sizes[0] == job.minimum and job.sizes[-1] == job.maximum
    assert 0 <= job.held <= 100_000 and not (job.finished and job.held)
    numbers = (job.submitted_at, job.reported_at, job.waits, job.service, *job.speeds.values())
    assert all(math.isfinite(number) and number >= 0 for number in numbers)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({}, [{}]),
        ({"guaranteed": {}, "overQuota": {}}, [{}]),
        ({"guaranteed": POOL, "overQuota": POOL}, [POOL]),
        ({"guaranteed": POOL, "overQuota": {**POOL, "tolerations": SPOT}}, [POOL, {**POOL, "tolerations": SPOT}]),
        ({"guaranteed": POOL}, [POOL, {}]),
    ],
)
def test_a_job_says_which_machines_its_nodes_can_be_on(reported: Any, expected: list[dict[str, Any]]) -> None:
    assert job_of(changed(scheduling=reported)).scheduling == tuple(map(scheduling_of, expected))


def test_a_job_that_does_not_report_what_its_pods_ask_of_machines_can_use_each_of_them() -> None:
    without = {name: value for name, value in GOOD["demand"].items() if name != "scheduling"}
    for older in (old(), changed(scheduling=None), {**GOOD, "demand": without}):
        assert job_of(older).scheduling == (ANYWHERE,)


@pytest.mark.parametrize("reported", [7, [], {"guaranteed": 7}, {"overQuota": {"nodeSelector": 7}}])
def test_what_is_not_clear_of_the_machines_refuses_no_report(reported: Any) -> None:
    assert any(one.unclear for one in job_of(changed(scheduling=reported)).scheduling)


def test_the_gpus_of_a_node_are_reported() -> None:
    assert job_of(GOOD).per_node == 2
