"""What a job has used, from its events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import Event
from elastic_launcher.report.metrics import measure
from elastic_launcher.report.state import JobState, advance, fold
from elastic_launcher.report.usage import Usage
from tests.support import histories
from tests.support.histories import START, Story

PENDING = "1 of 2 nodes pending: Insufficient nvidia.com/gpu."


def usage(story: Story) -> Usage:
    return fold(story.events).usage


@pytest.mark.parametrize("tell", [histories.resized, histories.troubled, histories.week, histories.plain])
def test_gpu_seconds_are_those_of_the_metrics(tell: object) -> None:
    assert callable(tell)
    events = tell().events
    state = fold(events)
    assert state.usage.gpu_seconds(state.last_at) == pytest.approx(measure(events).gpu_seconds, abs=0.01)


def test_a_node_that_waits_for_a_place_uses_nothing() -> None:
    story = Story(nproc_per_node=2).start_nodes(1, 2).add("warning", message=PENDING, pending=[2]).later(100.0)
    assert usage(story).gpu_seconds(story.now) == pytest.approx(200.0, abs=0.1)
    story.add("node_placed", node=2, pod="x-2", machine="m").later(10.0)
    assert usage(story).gpu_seconds(story.now) == pytest.approx(240.0, abs=0.1)


def test_nothing_is_used_between_two_runs_of_a_job_also_where_the_first_was_killed() -> None:
    story = Story().start_nodes(1).form(1, cause="start").train(10)
    used = usage(story).gpu_seconds(story.now)
    story.later(3600.0).add("job_started", name="bert")
    assert usage(story).gpu_seconds(story.now + 60) == pytest.approx(used)
    story.start_nodes(2).later(10.0)
    assert usage(story).gpu_seconds(story.now) == pytest.approx(used + 10, abs=0.1)


def test_nothing_is_used_once_the_job_has_ended() -> None:
    story = histories.resized()
    used = usage(story)
    assert used.gpus == 0
    assert used.gpu_seconds(story.now + 3600) == used.gpu_seconds(story.now)


@given(st.lists(st.sampled_from(["node_started", "node_left", "warning", "progress", "job_started", "quota_wait"])))
def test_gpu_seconds_never_fall(kinds: list[str]) -> None:
    state, known = JobState(), 0.0
    for number, kind in enumerate(kinds):
        fields = {"node": number // 2, "pending": [number // 3], "members": []}
        state = advance(state, Event(kind, START + number, 0, fields if kind.startswith(("node", "warn")) else {}))
        assert state.usage.gpu_seconds(state.last_at) >= known
        known = state.usage.gpu_seconds(state.last_at)


def test_a_job_trains_since_its_start_or_its_last_pause() -> None:
    story = Story().start_nodes(1)
    assert usage(story).trains_since is None
    begun = story.later(5.0).form(1, cause="start").now
    story.train(3).start_nodes(2).form(1, 2).train(3)
    assert usage(story).trains_since == begun, "a resize is no start"
    story.add("quota_lost", step=story.step).add("quota_wait", step=story.step)
    assert usage(story).trains_since is None
    story.later(60.0).add("quota_back", step=story.step).start_nodes(3).later(5.0)
    again = story.form(3, cause="start").now
    assert usage(story.train(3)).trains_since == again
    assert usage(story.add("nodes_wait", step=story.step)).trains_since is None
    assert usage(story.form(3, cause="notice").finish()).trains_since is None


def test_changes_are_those_by_hints_and_none_by_faults_or_of_the_same_size() -> None:
    story = Story().start_nodes(1).form(1, cause="start")
    assert usage(story).changes == 0
    assert usage(story.form(1, 2)).changes == 1
    assert usage(story.form(1, 2, 3, cause="queue")).changes == 2
    assert usage(story.form(1, 2, cause="failure")).changes == 2
    assert usage(story.form(1, 2, 4, cause="failure")).changes == 2
    assert usage(story.form(1, 2, 5, cause="hint")).changes == 2, "another node, and as many"
    story.add("quota_lost", step=1).add("quota_wait", step=1).add("quota_back", step=1, seconds=3.0)
    assert usage(story.form(6, cause="start")).changes == 4


def test_a_wait_before_the_start_is_no_change() -> None:
    story = Story().add("quota_wait", message="0 GPUs").add("quota_back", seconds=3.0).form(1, cause="start")
    assert usage(story).changes == 0


def test_a_start_takes_as_long_as_that_of_the_slowest_joiner() -> None:
    story = Story().start_nodes(1).later(20.0).form(1, cause="start")
    assert usage(story).start_seconds == pytest.approx(20.0, abs=0.1)
    story.train(50).start_nodes(2).later(4.0).start_nodes(3).later(6.0).warm(2, 3).form(1, 2, 3).train(5)
    assert usage(story).start_seconds == pytest.approx(10.0, abs=0.2)
    assert usage(story.form(1, 2)).start_seconds == pytest.approx(10.0, abs=0.2), "nobody joined"


def test_the_wait_for_a_place_or_for_the_queue_is_no_part_of_a_start() -> None:
    story = Story().start_nodes(1).later(600.0).add("node_placed", node=1, pod="x-1-a", machine="m").later(3.0)
    story.add("node_requeued", node=1, members=[7], pod="x-1-a").later(900.0)
    story.add("node_placed", node=1, pod="x-1-b", machine="m").later(4.0)
    story.add("node_placed", node=1, pod="x-1-b", machine="m").later(5.0).form(1, cause="start", pause=0.0)
    assert usage(story).start_seconds == pytest.approx(9.0), "a launcher that took over said the pod again"
