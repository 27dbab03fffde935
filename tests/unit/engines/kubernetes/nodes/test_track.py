"""A node by what is shown of it, in whatever order Job and pod are."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Gone, Leaving, Running, Waiting
from elastic_launcher.engines.kubernetes.nodes.track import Track

SPEC = NodeSpec(3, 5, 2)
JOB: dict[str, Any] = {"metadata": {"name": "x-3", "labels": {}}, "spec": {}, "status": {}}
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


def pod(state: dict[str, Any] | None = None, uid: str = "p1", **status: Any) -> dict[str, Any]:
    statuses = [{"name": "node", "restartCount": 0, "state": state}] if state else []
    return {
        "metadata": {"name": f"x-3-{uid}", "uid": uid},
        "spec": {"containers": [{"name": "node"}]},
        "status": {"phase": "Pending", "containerStatuses": statuses, **status},
    }


SUSPENDED: dict[str, Any] = {**JOB, "spec": {"suspend": True}}
RUNNING = pod({"running": {}}, phase="Running")
ENDED = pod({"terminated": {"exitCode": 75, "reason": "Error"}}, phase="Failed")

SHOWN = st.sampled_from(
    [
        lambda track: track.show_job(JOB),
        lambda track: track.show_job(SUSPENDED),
        lambda track: track.show_job(None),
        lambda track: track.show_pod(pod()),
        lambda track: track.show_pod(RUNNING),
        lambda track: track.show_pod(ENDED),
        lambda track: track.show_pod(RUNNING, deleted=True),
        lambda track: track.show_pod(pod({"running": {}}, uid="p2", phase="Running")),
        lambda track: track.show_events([{"reason": "FailedMount", "message": "x"}]),
        lambda track: track.miss_pod(),
    ]
)


@given(st.lists(SHOWN, max_size=8))
def test_a_node_that_is_gone_stays_as_it_ended(shown: list[Any]) -> None:
    track = Track(SPEC)
    for show in shown:
        gone = track.gone
        track = show(track)
        assert gone is None or track.gone == gone


def test_one_that_was_not_shown_yet_is_not_gone() -> None:
    track = Track(SPEC).miss_pod()
    assert track.standing == Waiting(Cause.STARTING, "its Job is being made")
    assert not track.in_doubt


def test_job_and_pod_may_be_shown_in_any_order() -> None:
    shows = (lambda t: t.show_job(JOB), lambda t: t.show_pod(pod()), lambda t: t.show_pod(RUNNING))
    for first, second, third in permutations(shows):
        track = third(second(first(Track(SPEC))))
        assert isinstance(track.standing, Running | Waiting)
        assert not track.in_doubt


def test_a_job_that_went_before_its_pod_was_shown_leaves_a_doubt() -> None:
    track = Track(SPEC).show_job(JOB).show_job(None)
    assert track.in_doubt
    assert track.gone is None
    assert track.miss_pod().gone == Gone(None, "its Job was deleted", taken=True)
    assert isinstance(track.show_pod(RUNNING).standing, Running)


def test_how_the_agent_ended_is_kept_when_the_pod_goes() -> None:
    track = Track(SPEC).show_job(JOB).show_pod(RUNNING).show_pod(ENDED).show_pod(ENDED, deleted=True).show_job(None)
    assert track.gone == Gone(75)


def test_a_pod_that_goes_without_a_word_was_taken() -> None:
    running = Track(SPEC).show_job(JOB).show_pod(RUNNING)
    assert running.show_pod(RUNNING, deleted=True).gone == Gone(None, "its pod was deleted", taken=True)
    assert running.miss_pod().gone == Gone(None, "its pod was deleted", taken=True)
    evicted = running.show_pod(pod({"running": {}}, phase="Running", conditions=DISRUPTED))
    assert isinstance(evicted.standing, Leaving)
    assert evicted.miss_pod().gone == Gone(None, "evicted", taken=True)


def test_a_second_pod_of_the_same_job_is_nobody() -> None:
    track = Track(SPEC).show_job(JOB).show_pod(RUNNING, deleted=True)
    assert track.show_pod(pod({"running": {}}, uid="p2", phase="Running")).gone == track.gone
    alive = Track(SPEC).show_pod(RUNNING)
    assert alive.show_pod(pod({"terminated": {"exitCode": 0}}, uid="p2", phase="Succeeded")) == alive


@pytest.mark.parametrize("first", [pod(), RUNNING])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("admitted", ["after", "before"])
def test_a_node_that_its_queue_takes_back_waits_for_its_next_pod(
    first: dict[str, Any], ended: bool, admitted: str
) -> None:
    """Also where it is admitted again before its pod has gone."""
    track = Track(SPEC).show_job(JOB).show_pod(first).show_job(SUSPENDED)
    waits = Waiting(Cause.ADMISSION, "its Job is suspended: it waits for quota admission")
    leaves = Leaving("taken back: its Job is suspended", None, again=True, pod="x-3-p1")
    assert track.standing == (leaves if first is RUNNING else waits)
    if admitted == "before":
        track = track.show_job(JOB)
        deleting = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2026-11-25T12:00:00Z"}}
        told = track.show_pod(deleting).standing
        assert isinstance(told, Leaving) and (told.again, told.pod) == (True, "x-3-p1")
    if ended:
        track = track.show_pod(ENDED)
    track = track.show_pod(ENDED if ended else first, deleted=True)
    assert (track.gone, track.pod) == (None, None)
    assert track.put_back is not None and track.put_back.exit_code == (75 if ended else None)
    assert track.former == "x-3-p1"
    track = track.tell_put_back()
    if admitted == "after":
        assert track.standing == waits
        track = track.show_job(JOB)
    track = track.show_pod(first, deleted=True)  # said once more of the one before
    second = pod({"running": {}}, uid="p2", phase="Running")
    track = track.show_pod(second)
    assert isinstance(track.standing, Running) and track.put_back is None
    assert track.show_pod(second, deleted=True).gone == Gone(None, "its pod was deleted", taken=True)


def test_a_node_whose_suspended_job_goes_is_gone() -> None:
    track = Track(SPEC).show_job(JOB).show_pod(pod()).show_job(SUSPENDED).show_pod(pod(), deleted=True).tell_put_back()
    assert track.show_job(None).miss_pod().gone == Gone(None, "its Job was deleted", taken=True)


def test_a_node_that_ended_before_its_queue_took_it_back_is_gone() -> None:
    track = Track(SPEC).show_job(JOB).show_pod(RUNNING).show_pod(ENDED).show_job(SUSPENDED)
    assert (track.gone, track.put_back) == (Gone(75), None)
