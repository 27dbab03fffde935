"""The numbers that pipelines compare runs by."""

from __future__ import annotations

import json

import pytest

from elastic_launcher.report.history import relate
from elastic_launcher.report.metrics import measure
from tests.support import histories


def test_a_job_that_was_resized() -> None:
    story = histories.resized()
    metrics = measure(story.events)
    assert (metrics.world_size_final, metrics.resizes_total, metrics.generations) == (2, 2, 3)
    assert metrics.pauses_seconds == (0.031, 0.012)
    assert (metrics.steps, metrics.samples) == (story.step, story.step * histories.SAMPLES)
    assert metrics.goodput == pytest.approx(metrics.counted_seconds / metrics.duration_seconds, abs=1e-4)
    assert (metrics.notices, metrics.failures, metrics.exit_code) == (1, 0, 0)
    assert metrics.duration_seconds == pytest.approx(story.now - histories.START, abs=1e-3)
    assert metrics.logged == {"test_accuracy": 0.9811, "test_loss": 0.0612}


def test_gpus_are_counted_for_as_long_as_their_nodes_are_there() -> None:
    story = histories.Story(nproc_per_node=2).start_nodes(1)
    story.form(1, cause="start").later(10)
    began = story.now
    story.start_nodes(2).form(1, 2).later(20).add("node_left", node=2, cause="hint")
    second = story.now - began
    story.later(5).finish()
    metrics = measure(story.events)
    alone = relate(story.events).nodes[0].started
    assert metrics.gpu_seconds == pytest.approx(2 * (metrics.duration_seconds - alone + second), abs=2)
    assert metrics.pause_seconds == pytest.approx(sum(metrics.pauses_seconds))


def test_nodes_of_a_launcher_that_was_killed_count_up_to_its_last_event() -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(10)
    first = measure(story.events).gpu_seconds
    story.later(3600.0).add("job_started", name="bert").start_nodes(2)
    began = story.now
    story.later(10).finish()
    assert measure(story.events).gpu_seconds == pytest.approx(first + story.now - began, abs=0.1)


def test_nodes_that_only_bring_a_job_to_its_size_are_no_resize() -> None:
    story = histories.Story().start_nodes(1, 2).form(1, cause="start").train(3).form(1, 2, cause="start").train(3)
    metrics = measure(story.form(1, cause="hint").events)
    assert (metrics.resizes_total, metrics.generations, len(metrics.pauses_seconds)) == (1, 3, 2)


def test_a_job_with_troubles() -> None:
    metrics = measure(histories.troubled().events)
    assert (metrics.failures, metrics.steps_redone, metrics.events_lost, metrics.exit_code) == (2, 1, 17, 1)
    assert metrics.loss_not_finite == 10
    assert metrics.loss is not None
    assert metrics.pauses_seconds == (2.4,)


def test_a_loss_that_is_no_number_at_the_end_is_none_and_flagged() -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(3).train(2, loss="nan")
    metrics = measure(story.events)
    assert metrics.loss is None
    assert metrics.loss_not_finite == 2
    json.dumps(metrics.to_dict(), allow_nan=False)


def test_the_speed_is_that_of_the_whole_training_without_what_came_before_and_after() -> None:
    story = histories.Story().later(500).start_nodes(1).form(1, cause="start")
    for _ in range(11):
        story.later(2.0)
        story.step += 4
        story.add("progress", step=story.step, epoch=0, samples=story.step * 256)
    story.later(300).finish()
    assert measure(story.events).samples_per_second == 4 * 256 / 2


def test_goodput_of_a_running_job_leaves_out_the_start_and_the_pauses() -> None:
    story = histories.Story().later(20).start_nodes(1).form(1, cause="start", pause=0)
    for _ in range(2):
        story.later(38).add("progress", step=1, epoch=0, samples=1).form(1, cause="hint", pause=2)
    story.add("progress", step=2, epoch=0, samples=2)
    seconds = story.now - histories.START
    assert measure(story.events).goodput == pytest.approx((seconds - 20 - 4) / seconds, abs=1e-3)


@pytest.mark.parametrize("story", [histories.Story(), histories.waiting(), histories.Story().finish(76, "no quota")])
def test_a_job_that_never_trained_has_numbers_too(story: histories.Story) -> None:
    metrics = measure(story.events)
    assert (metrics.steps, metrics.samples_per_second, metrics.goodput, metrics.resizes_total) == (0, 0.0, 0.0, 0)
    assert metrics.pauses_seconds == ()


def test_no_events_no_numbers() -> None:
    assert measure([]).duration_seconds == 0.0
