"""A job's past on one axis of time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from elastic_launcher.report.history import Quota, relate
from tests.support import histories


def test_generations_have_their_members_their_cause_and_their_speed() -> None:
    one, two, three = relate(histories.resized().events).generations
    assert [(g.number, g.world_size, g.nodes, g.cause) for g in (one, two, three)] == [
        (1, 1, (1,), "start"),
        (2, 3, (1, 2, 3), "hint"),
        (3, 2, (2, 3), "notice"),
    ]
    assert (one.until, two.until) == (two.at, three.at)
    assert [round((g.samples_per_second or 0) / histories.SAMPLES) for g in (one, two, three)] == [4, 12, 8]


def test_a_hint_that_says_the_same_again_is_no_change() -> None:
    story = histories.Story().hint(1, 1, 3).later(5).hint(1, 1, 3).later(5).hint(1, 2, None).later(5).hint(1, 2, None)
    assert relate(story.events).quotas == (Quota(0.0, 1, 1, 3), Quota(10.0, 1, 2, None))


def test_nodes_live_from_their_start_to_their_end() -> None:
    one, two, three = relate(histories.resized().events).nodes
    assert one.noticed is not None and one.ended is not None and one.admitted is not None
    assert one.started < one.admitted < one.noticed < one.ended
    assert (one.end, two.end, three.end) == ("left", "", "")
    assert two.admitted is not None and two.started < two.admitted


def test_a_node_that_failed_was_never_admitted() -> None:
    nodes = {life.node: life for life in relate(histories.troubled().events).nodes}
    assert (nodes[4].admitted, nodes[4].end) == (None, "failed")
    assert nodes[3].end == "lost"


def test_a_loss_that_is_not_finite_is_nan() -> None:
    history = relate(histories.troubled().events)
    assert sum(math.isnan(value) for _, value in history.loss) == 10
    assert len(history.loss) > 50


def test_notable_is_what_a_reader_should_not_miss() -> None:
    kinds = [note.kind for note in relate(histories.troubled().events).notable]
    assert kinds == [
        "hint_rejected",
        "node_failed",
        "step_redone",
        "events_gap",
        "warning",
        "hint_missing",
        "node_lost",
    ]


def test_time_never_runs_backwards() -> None:
    history = relate(histories.resized().later(-7200).train(4).events)
    moments = [at for at, _ in history.loss]
    assert moments == sorted(moments)
    assert history.seconds >= moments[-1] >= 0


@pytest.mark.parametrize(
    ("story", "outcome"),
    [
        (histories.waiting(), "starting"),
        (histories.week(0.01, 1), "running"),
        (histories.resized(), "finished"),
        (histories.troubled(), "failed"),
    ],
)
def test_how_it_stands(story: histories.Story, outcome: str) -> None:
    assert relate(story.events).outcome == outcome


def test_no_events_no_history() -> None:
    history = relate([])
    assert (history.name, history.seconds, history.generations) == ("job", 0.0, ())


def test_no_generation_trains_while_the_job_waits_for_quota_or_its_launcher_is_away() -> None:
    history = relate(histories.interrupted().events)
    gaps = [
        round(after.at - before.until, 1) for before, after in pairwise(history.generations) if after.at > before.until
    ]
    assert gaps == [17.1, 11.1]  # the wait and the start after it; the launcher away, and the start of another run


def test_a_job_that_waits_for_quota_has_no_generation_now() -> None:
    story = histories.Story().form(1, cause="start").train(5).add("quota_wait", message="waits").later(20)
    history = relate(story.add("warning", message="still").events)
    assert history.seconds - history.generations[-1].until == pytest.approx(20)


def test_nothing_trains_between_two_runs_also_where_the_first_was_killed() -> None:
    killed = histories.Story().start_nodes(1).form(1, cause="start").train(10)
    end = killed.now - histories.START
    again = killed.later(3600.0).add("job_started", name="bert").start_nodes(2).form(2, cause="start").train(10)
    history = relate(again.events)
    assert history.generations[0].until == pytest.approx(end, abs=1.0)
    assert history.nodes[0].ended == history.generations[0].until


def test_a_generation_ends_with_its_run() -> None:
    stopped = histories.Story().start_nodes(1).form(1, cause="start").train(10).finish(75)
    end = stopped.now - histories.START
    again = stopped.later(3600.0).add("job_started", name="bert").start_nodes(2).form(2, cause="start").train(10)
    assert relate(again.events).generations[0].until == pytest.approx(end, abs=1e-3)
