"""Where a job stands: the fold that status, display and metrics share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import KINDS, Event
from elastic_launcher.report.describe import silent, slow, waiting
from elastic_launcher.report.progress_line import progress_line
from elastic_launcher.report.state import JobState, advance, fold, outcome
from tests.support import histories


def test_nothing_is_known_of_a_job_without_events() -> None:
    assert fold([]) == JobState()
    assert fold([]).outcome == "starting"
    assert fold([]).seconds_left is None


def test_a_job_that_was_resized() -> None:
    story = histories.resized()
    state = fold(story.events)
    assert (state.outcome, state.generation, state.resizes, state.world_size) == ("finished", 3, 2, 2)
    assert state.step == story.step
    assert state.samples == story.step * histories.SAMPLES
    assert state.quota == {"guaranteed": 1, "allowed": 3, "limit": 3}
    assert state.logged == {"test_accuracy": 0.9811, "test_loss": 0.0612}
    assert [member["member"] for member in state.members] == [2, 3]
    assert {node.node: node.phase for node in state.nodes.values()} == {1: "left", 2: "training", 3: "training"}


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        (("node_started", {"node": 9, "members": [17, 18]}), "starting"),
        (("node_warm", {"node": 9}), "warm"),
        (("notice", {"node": 9, "source": "signal"}), "leaving"),
        (("node_left", {"node": 9, "cause": "hint"}), "left"),
        (("node_failed", {"node": 9, "message": "m"}), "failed"),
        (("node_lost", {"node": 9, "message": "m"}), "lost"),
    ],
)
def test_a_node_is_followed_from_its_start_to_its_end(last: tuple[str, dict[str, object]], phase: str) -> None:
    story = histories.Story(nproc_per_node=2).start_nodes(9).add(last[0], **last[1])
    node = fold(story.events).nodes[9]
    assert (node.phase, node.members) == (phase, (17, 18))
    assert node.is_there == (phase in ("starting", "warm", "training", "leaving"))


def test_a_noticed_node_is_leaving_although_a_generation_with_it_still_forms() -> None:
    story = histories.Story().start_nodes(1, 2).form(1, cause="start").add("notice", node=1, source="signal").form(1, 2)
    assert fold(story.events).nodes[1].phase == "leaving"


@pytest.mark.parametrize("value", ["nan", "inf", None, 0.0, 2])
def test_the_loss_is_the_last_one_told(value: object) -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start").train(2).train(1, loss=value or 0.0)
    assert fold(story.events).loss == (value or 0.0)


@pytest.mark.parametrize("kind", ["warning", "hint_rejected", "hint_missing", "node_failed", "node_lost"])
def test_the_message_is_the_last_one_of_any_kind_that_has_one(kind: str) -> None:
    story = histories.Story().add("warning", message="first").add(kind, node=1, message="second")
    assert fold(story.events).message == "second"


@pytest.mark.parametrize(
    ("kind", "stale", "message"),
    [
        ("hint_rejected", False, ""),
        ("hint_missing", False, ""),
        ("hint_missing", True, "torn"),
        ("warning", False, "torn"),
    ],
)
def test_a_message_about_hints_lasts_until_some_can_be_used(kind: str, stale: bool, message: str) -> None:
    story = histories.Story().add(kind, message="torn").hint(1, 1, 1, stale=stale)
    assert fold(story.events).message == message


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "finished"), (1, "failed"), (2, "failed"), (70, "failed"), (75, "stopped"), (76, "stopped"), (130, "stopped")],
)
def test_how_a_job_ended_follows_from_its_exit_code(code: int, said: str) -> None:
    assert outcome(code) == said
    assert fold(histories.Story().finish(code).events).outcome == said


def test_the_time_left_is_that_of_the_steps_to_do_at_the_present_speed() -> None:
    story = histories.Story(total_steps=1000).start_nodes(1).form(1, cause="start")
    for _ in range(10):
        story.later(2.0)
        story.step += 10
        story.add("progress", step=story.step, epoch=0, total_steps=1000, samples=story.step)
    state = fold(story.events)
    assert state.step_seconds == pytest.approx(0.2)
    assert state.seconds_left == pytest.approx(900 * 0.2)


def paced(story: histories.Story, nodes: int, seconds: float, reports: int = 3) -> histories.Story:
    """Forms a generation of so many nodes, and trains 10 steps before each report, after so many seconds each."""
    story.form(*range(1, nodes + 1), pause=4.0)
    for _ in range(reports):
        story.later(seconds)
        story.step += 10
        story.add("progress", step=story.step, epoch=0, samples=story.step, world_size=nodes)
    return story


def test_speeds_are_known_by_the_number_of_ranks_each_as_it_was_last() -> None:
    story = paced(paced(histories.Story().start_nodes(1, 2, 3, 4), 1, 2.0), 4, 1.0)
    assert fold(story.events).speeds == {1: pytest.approx(5.0), 4: pytest.approx(10.0)}
    assert fold(paced(story, 1, 4.0).events).speeds == {1: pytest.approx(2.5), 4: pytest.approx(10.0)}


def test_no_speed_has_the_time_of_a_reconfiguration_or_of_steps_before_it_in_it() -> None:
    story = paced(histories.Story().start_nodes(1, 2), 1, 2.0)
    story.later(1.9).form(1, 2, pause=30.0).later(0.1)
    story.step += 3
    story.add("progress", step=story.step, epoch=0, samples=story.step, world_size=2)
    state = fold(story.events)
    assert state.speeds == {1: pytest.approx(5.0)}, "its first report alone says nothing"
    story.later(1.0)
    story.step += 8
    assert fold(story.add("progress", step=story.step, samples=1, world_size=2).events).speeds[2] == pytest.approx(8.0)


def test_speeds_outlast_a_restart_and_a_report_without_steps() -> None:
    story = paced(histories.Story().start_nodes(1), 1, 2.0)
    story.later(9.0).add("progress", step=story.step, samples=1, world_size=1)
    story.finish(75).add("job_started", name="bert", resumed_step=story.step)
    assert fold(story.events).speeds == {1: pytest.approx(5.0)}


def test_a_new_generation_changes_the_time_left_at_once() -> None:
    story = histories.Story(total_steps=10_000).start_nodes(1).form(1, cause="start")
    for nodes, rate in ((1, 5), (4, 20)):
        if nodes > 1:
            story.form(1, 2, 3, 4, pause=0.0)
        for _ in range(3):
            story.later(1.0)
            story.step += rate
            story.add("progress", step=story.step, epoch=0, total_steps=10_000, samples=story.step)
    assert fold(story.events).step_seconds == pytest.approx(1 / 20)


@pytest.mark.parametrize("waits", ["quota_wait", "nodes_wait", ""])
def test_time_in_which_nobody_trained_is_no_steps_time(waits: str) -> None:
    story = histories.Story(total_steps=1000).start_nodes(1).form(1, cause="start")
    for again in (False, True):
        if again and waits:
            story.later(1.0).add(waits, step=story.step, message="waiting")
            story.later(3600.0).form(2, cause="notice", pause=0.0)
        elif again:
            story.later(3600.0).form(2, cause="failure", pause=0.0)
            story.events[-1] = replace(story.events[-1], fields={**story.events[-1].fields, "pause_seconds": 3600.0})
        for _ in range(3):
            story.later(1.0)
            story.step += 10
            story.add("progress", step=story.step, epoch=0, total_steps=1000, samples=story.step)
    assert fold(story.events).step_seconds == pytest.approx(0.1)


def test_a_job_that_waits_for_nodes_has_no_time_left_to_tell() -> None:
    story = histories.Story(total_steps=100).start_nodes(1).form(1, cause="start").later(1.0)
    story.add("progress", step=10, epoch=0, total_steps=100, samples=10).add("nodes_wait", step=10, message="no room")
    state = fold(story.events)
    assert (state.outcome, state.lacks, state.seconds_left) == ("waiting", "nodes", None)
    assert fold(story.form(2, cause="notice").events).outcome == "running"


def test_the_time_left_does_not_jump_with_one_slow_report() -> None:
    story = histories.Story(total_steps=10_000).start_nodes(1).form(1, cause="start")
    for seconds in (*[1.0] * 60, 3.0):
        story.later(seconds)
        story.step += 10
        story.add("progress", step=story.step, epoch=0, total_steps=10_000, samples=story.step)
    step_seconds = fold(story.events).step_seconds
    assert step_seconds is not None
    assert 0.1 < step_seconds < 0.15


def test_a_wall_clock_that_is_set_back_does_no_harm() -> None:
    story = histories.resized()
    story.later(-3600).train(3)
    state = fold(story.events)
    assert state.last_at >= state.started_at
    assert state.step == story.step


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*KINDS, "of_a_later_version"]),
            st.floats(0, 2e9),
            st.fixed_dictionaries({}, optional={"node": st.integers(1, 4), "step": st.integers(0, 99)}),
        ),
        max_size=8,
    )
)
def test_events_that_lack_fields_break_nothing(told: list[tuple[str, float, dict[str, int]]]) -> None:
    state = JobState()
    for kind, time, fields in told:
        after = advance(state, Event(kind, time, 1, fields))
        from_checkpoint = kind in ("job_started", "quota_back", "nodes_wait")
        assert after.step >= state.step or from_checkpoint
        assert after.last_at >= state.last_at
        state = after


def test_a_job_without_quota_waits_without_nodes_and_goes_on_where_it_is_saved() -> None:
    events = [
        Event("job_started", 0.0, 0, {"name": "job"}),
        Event("node_started", 1.0, 0, {"node": 1, "members": [1]}),
        Event("generation_formed", 2.0, 1, {"members": [{"member": 1, "node": 1}]}),
        Event("progress", 3.0, 1, {"step": 10}),
        Event("quota_lost", 4.0, 1, {"step": 10, "message": "0 GPUs"}),
        Event("quota_wait", 5.0, 0, {"step": 9, "message": "waiting for quota: 0 GPUs"}),
    ]
    state = fold(events)
    assert (state.outcome, state.world_size, waiting(state)) == ("waiting", 0, "waiting for quota: 0 GPUs")
    assert not any(node.is_there for node in state.nodes.values())
    back = advance(state, Event("quota_back", 9.0, 0, {"step": 9, "seconds": 4.0}))
    assert (back.outcome, back.step, waiting(back)) == ("running", 9, "")


def test_a_straggler_is_known_until_it_is_none_any_more_or_has_gone() -> None:
    members = [{"member": number, "node": number} for number in (1, 2, 3)]

    def event(kind: str, **fields: object) -> Event:
        return Event(kind, histories.START, 1, fields)

    def is_slow(member: int, over: bool = False) -> Event:
        return event("straggler", member=member, rank=member - 1, node=member, factor=2.5, step_seconds=0.4, over=over)

    formed = event("generation_formed", members=members, world_size=3, cause="start")
    state = fold([formed, is_slow(2), is_slow(3)])
    assert sorted(state.stragglers) == [2, 3]
    assert slow(state) == "rank 1 (node 2) is 2.5 times slower, rank 2 (node 3) is 2.5 times slower"
    state = advance(state, is_slow(2, over=True))
    assert sorted(state.stragglers) == [3]
    fewer = event("generation_formed", members=members[:2], world_size=2, cause="notice")
    assert advance(state, fewer).stragglers == {}


PENDING = "2 of 3 nodes pending: its Job is suspended by queue gpus: it waits for quota admission."


def test_a_warning_about_nodes_that_wait_lasts_as_long_as_they_do() -> None:
    story = (
        histories.Story().start_nodes(1, 2, 3).form(1, cause="start").add("warning", message=PENDING, pending=[2, 3])
    )
    assert (fold(story.events).message, fold(story.events).pending) == (PENDING, {2, 3})
    story.add("node_placed", node=2, pod="x-2", machine="m")
    assert (fold(story.events).message, fold(story.events).pending) == (PENDING, {3})
    story.add("node_left", node=3, cause="hint")
    assert (fold(story.events).message, fold(story.events).pending) == ("", set())


@pytest.mark.parametrize(("taken", "shown"), [("x-2-a", "x-2-b"), ("x-2-b", "")])
def test_a_node_has_the_pod_that_was_placed_last_unless_its_queue_took_that_one(taken: str, shown: str) -> None:
    story = histories.Story().start_nodes(1, 2)
    for pod in ("x-2-a", "x-2-b"):
        story.add("node_placed", node=2, pod=pod, machine="m")
    story.add("node_requeued", node=2, members=[3], pod=taken)
    assert fold(story.events).nodes[2].pod == shown


def test_another_warning_outlasts_the_wait() -> None:
    story = (
        histories.Story().start_nodes(1, 2).add("warning", message=PENDING, pending=[2]).add("warning", message="other")
    )
    state = fold(story.add("node_placed", node=2, pod="x-2", machine="m").events)
    assert (state.message, state.pending) == ("other", set())


def test_a_rank_is_silent_until_it_is_heard_of_again_or_has_gone() -> None:
    members = [{"member": number, "node": number} for number in (1, 2)]

    def is_silent(member: int, over: bool = False) -> Event:
        return Event("silent", histories.START, 1, {"member": member, "rank": member - 1, "node": member, "over": over})

    formed = Event("generation_formed", histories.START, 1, {"members": members, "world_size": 2, "cause": "start"})
    state = fold([formed, is_silent(1), is_silent(2)])
    assert silent(state) == "nothing is heard from rank 0 (node 1), rank 1 (node 2)"
    state = advance(state, is_silent(1, over=True))
    assert silent(state) == "nothing is heard from rank 1 (node 2)"
    fewer = Event(
        "generation_formed", histories.START, 2, {"members": members[:1], "world_size": 1, "cause": "failure"}
    )
    assert silent(advance(state, fewer)) == ""


def test_what_a_queue_gives_is_told_beside_what_the_hint_allows_while_nodes_wait_in_it() -> None:
    story = histories.Story().start_nodes(1, 2, 3).add("warning", message=PENDING, pending=[1, 2, 3], queued=[2, 3])
    assert fold(story.events).admitted == 1 and " admitted=1 " in f"{progress_line(fold(story.events))} "
    story.add("node_placed", node=2, pod="p", machine="m").add("node_warm", node=2)
    assert fold(story.events).admitted == 2
    story.add("node_warm", node=3)
    assert fold(story.events).admitted is None, "it holds nothing back any more"
