"""What a job reports to a quota controller."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.report.metrics import measure
from elastic_launcher.report.state import JobState, fold
from elastic_launcher.report.status import demand, document
from tests.support import histories
from tests.support.histories import START, Story


def job(**options: Any) -> dict[str, Any]:
    """Returns a ``job.json`` of a job with these options."""
    config = JobConfig(**{"script": "bert.py", "min_nodes": 1, "max_nodes": 4, **options})
    return {"id": "bert-20261121-063320-1f2e", "created": START, "config": config.to_dict()}


def reported(story: Story, document: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    found = demand(fold(story.events), document or job(), **{"now": story.now, **more})
    assert found is not None
    return found


def test_a_job_that_was_resized_reports_all() -> None:
    story = Story(max_nodes=4).hint(1, 1, 4).start_nodes(1).later(3).form(1, cause="start").train(6)
    story.hint(1, 2, 4).start_nodes(2).later(4).form(1, 2).train(6)
    found = reported(story, job(priority=7, project="nlp", wait_for_quota=60.0))
    assert {one: found[one] for one in found if one not in ("speeds", "service")} == {
        "minimum": 1,
        "maximum": 4,
        "per_node": 1,
        "priority": 7,
        "match": {"job": "bert", "project": "nlp", "id": "bert-20261121-063320-1f2e"},
        "submitted": START,
        "held": 2,
        "waits": 60.0,
        "following": {"allowed": 2, "generation": 2},
        "goodput": [],
        "steps_left": story.total_steps - story.step if story.total_steps else None,
        "start_seconds": pytest.approx(4.0, abs=0.1),
        "changes": 1,
        "started_training": pytest.approx(START + 3.0, abs=0.1),
        "scheduling": None,
        "reported": round(story.now, 3),
    }
    assert sorted(found["speeds"]) == ["1", "2"]
    assert found["service"] == pytest.approx(19 + 10, abs=1)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, (1, 4, 1)),
        ({"nproc_per_node": 8}, (8, 32, 8)),
        ({"nproc_per_node": 2, "global_batch_size": 5}, (2, 4, 2)),
        ({"min_nodes": 3, "global_batch_size": 2}, (3, 3, 1)),
        ({"global_batch_size": 2, "autoscale_batch_size": 3}, (1, 3, 1)),
    ],
)
def test_counts_are_gpus_and_no_more_than_the_batch_has_samples(
    options: dict[str, int], numbers: tuple[int, int, int]
) -> None:
    found = demand(JobState(), job(**options), now=START)
    assert found is not None
    assert (found["minimum"], found["maximum"], found["per_node"]) == numbers


@pytest.mark.parametrize(("most", "maximum"), [(2, 2), (3, 3), (64, 4)])
def test_a_batch_that_may_grow_is_of_use_to_as_many_gpus_as_its_maximum_has_samples(most: int, maximum: int) -> None:
    state = JobState(step_times={"bounds": {"base_batch_size": 2, "max_batch_size": most}})
    found = demand(state, job(global_batch_size=2), now=START)
    assert found is not None and found["maximum"] == maximum


def test_the_id_in_a_cluster_is_the_name_of_the_jobs_service() -> None:
    found = demand(JobState(), {**job(), "service": "bert-7qk2xw4mzt3a"}, now=START)
    assert found is not None and found["match"]["id"] == "bert-7qk2xw4mzt3a"


def test_a_job_in_a_cluster_reports_which_machines_its_nodes_can_be_on() -> None:
    known = {"guaranteed": {"nodeSelector": {"pool": "a100"}}, "overQuota": {}}
    found = demand(JobState(), {**job(), "scheduling": known}, now=START)
    assert found is not None and found["scheduling"] == known


def test_what_is_asked_for_counts_as_held_until_it_is_gone() -> None:
    story = Story(nproc_per_node=2).start_nodes(1, 2, 3).warm(2).form(1, 2, cause="start")
    story.add("warning", message="1 of 3 nodes pending", pending=[3])
    config = job(nproc_per_node=2)
    assert reported(story, config)["held"] == 6
    assert reported(story.add("notice", node=1, source="signal"), config)["held"] == 6
    assert reported(story.add("node_left", node=1, cause="notice"), config)["held"] == 4
    assert reported(story.add("quota_wait", step=3), config)["held"] == 0
    assert reported(Story().start_nodes(1).finish(75), config)["held"] == 0


def test_a_hint_is_followed_by_its_generation_also_where_its_numbers_stay() -> None:
    story = Story().start_nodes(1)
    assert reported(story)["following"] is None
    assert reported(story.hint(1, 2, 2))["following"] == {"allowed": 2, "generation": 1}
    assert reported(story.hint(1, 2, 2))["following"] == {"allowed": 2, "generation": 2}
    assert reported(story.add("hint_rejected", message="no JSON"))["following"] == {"allowed": 2, "generation": 2}
    assert reported(story.hint(None, None, None))["following"] == {"allowed": None, "generation": 3}, "nothing matches"
    assert reported(story.hint(1, 3, 3, hint_generation=None))["following"] == {"allowed": 3, "generation": None}


def test_the_nodes_of_a_killed_launcher_hold_gpus_until_they_must_have_ended() -> None:
    story = Story().start_nodes(1).form(1, cause="start").train(3)
    config = job(orphan_timeout=60.0, grace_period=15.0)
    last = story.now
    assert reported(story, config, gone=True, now=last + 70)["held"] == 1
    over = reported(story, config, gone=True, now=last + 80)
    assert (over["held"], over["started_training"]) == (0, None)
    assert over["service"] == round(last - START), "what it held since is not known"


@pytest.mark.parametrize(
    ("resize", "trains", "waits"), [("in-process", True, 60), ("respawn", True, 0), ("respawn", False, 60)]
)
def test_a_job_waits_for_quota_as_long_as_it_may(resize: str, trains: bool, waits: float) -> None:
    story = Story().start_nodes(1)
    if trains:
        story.form(1, cause="start")
    assert reported(story, job(resize=resize, wait_for_quota=60.0))["waits"] == waits


@pytest.mark.parametrize(("said", "waits"), [({}, 3600), ({"wait_for_quota": 60.0}, 60), ({"wait_for_quota": 0.0}, 0)])
def test_a_job_waits_as_the_hint_says_where_its_user_has_not(said: dict[str, float], waits: float) -> None:
    story = Story().hint(0, 1, 4, wait_seconds=3600.0).start_nodes(1).form(1, cause="start")
    assert reported(story, job(**said))["waits"] == waits


def test_a_job_was_submitted_when_it_was_first_started() -> None:
    story = histories.resized()
    assert reported(story, {**job(), "created": START + 900})["submitted"] == START
    assert reported(story, {**job(), "created": START - 900})["submitted"] == START - 900
    found = demand(JobState(), {"config": job()["config"]}, now=5.0)
    assert found is not None and found["submitted"] == 5.0


def test_of_a_job_of_which_nothing_is_known_nothing_is_reported() -> None:
    assert demand(JobState(), {}, now=START) is None
    found = demand(fold(Story(max_nodes=3).events), {}, now=START)
    assert found is not None and (found["minimum"], found["maximum"]) == (1, 3), "as its first event says"


BOUNDS = {"base_batch_size": 256, "max_batch_size": 256, "max_micro_batch": 64}


def test_goodput_is_reported_for_each_size_and_says_what_was_measured() -> None:
    story = Story(max_nodes=4)
    assert reported(story)["goodput"] == []
    story.add("step_times", step=9, batch=256, bounds=BOUNDS, times=[[1, 1, 64, 4, 0.8, 0.2, 20]])
    story.add("step_times", step=99, batch=256, bounds=BOUNDS, times=[[2, 2, 64, 2, 0.41, 0.2, 20]])
    found = reported(story)["goodput"]
    assert [list(one) for one in found] == [["ranks", "goodput", "batch", "measured"]] * 4
    assert [one["ranks"] for one in found if one["measured"]] == [1, 2]
    assert [one["goodput"] for one in found[:2]] == [320.0, pytest.approx(256 / 0.41, rel=1e-3)]
    assert found[0]["goodput"] < found[1]["goodput"] < found[3]["goodput"]
    assert {one["batch"] for one in found} == {256}
    assert reported(story, gone=True)["goodput"] == []
    assert measure(story.finish().events).goodput_by_size[0] == {
        "ranks": 1,
        "batch": 256,
        "micro_batch": 64,
        "accumulation": 4,
        "samples_per_second": 320.0,
        "efficiency": 1.0,
        "goodput": 320.0,
        "measured": True,
    }


def test_the_report_is_json_and_stays_small_after_many_sizes() -> None:
    story = histories.week()
    story.add("step_times", step=9, batch=256, bounds=BOUNDS, times=[[1, 8, 32, 1, 0.8, 0.2, 20]])
    state = replace(fold(story.events), speeds={size: 1 / (size + 1) for size in range(1, 513)})
    text = json.dumps(
        document(state, job(nproc_per_node=8, max_nodes=512), {}, alive=True, now=state.last_at), allow_nan=False
    )
    assert len(json.dumps(json.loads(text)["demand"])) < 12_000, "an object's annotations have 256 KiB together"
