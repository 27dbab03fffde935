"""A run is ended by a shrink of its hint, and by nothing else."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from elastic_launcher.events import Event, EventFollower, EventLog
from elastic_launcher.kfp_steps import release
from elastic_launcher.kfp_steps.release import Shrinks, ended_by_shrink


def formed(nodes: int) -> Event:
    return Event("generation_formed", 1.0, 1, {"nodes": nodes})


def hint(nodes: int) -> Event:
    return Event("hint_applied", 1.0, 1, {"target_nodes": nodes})


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([hint(3), formed(3), hint(2)], "the hint gives it 2 of its 3 nodes"),
        ([formed(1), formed(3), hint(1)], "the hint gives it 1 of its 3 nodes"),
        ([hint(1)], ""),  # nothing trains yet
        ([formed(3), hint(3)], ""),
        ([formed(1), hint(3)], ""),
        ([formed(3), formed(2)], ""),  # a node was lost, and comes back
        ([formed(3), Event("job_started", 1.0, 0), hint(1), formed(1)], ""),  # that was the run before
    ],
)
def test_only_a_shrink_ends_a_run(events: list[Event], why: str) -> None:
    assert Shrinks().take(events) == why
    shrinks = Shrinks()
    assert [told for event in events if (told := shrinks.take([event]))] == ([why] if why else [])


class Launcher:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.told = threading.Event()

    def send_signal(self, number: int) -> None:
        self.sent.append(number)
        self.told.set()


def test_the_launcher_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LOOK_SECONDS", 0.01)
    launcher = Launcher()
    with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as log:
        log.append("generation_formed", 1, nodes=3)
        log.append("hint_applied", 1, target_nodes=2)  # which an earlier launcher has answered
        with ended_by_shrink(cast(Any, launcher), tmp_path):
            assert not launcher.told.wait(0.1)
            log.append("hint_applied", 1, target_nodes=1)
            log.append("hint_applied", 1, target_nodes=1)
            assert launcher.told.wait(30)
    assert launcher.sent == [signal.SIGTERM]


def test_a_launcher_that_puts_the_events_of_another_job_aside_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where runs share a work directory: the events of this one begin in a file of their own."""
    monkeypatch.setattr(release, "LOOK_SECONDS", 0.01)
    launcher, events = Launcher(), tmp_path / "events.jsonl"
    with contextlib.closing(EventLog(events)) as log:
        for generation in range(1, 100):
            log.append("generation_formed", generation, nodes=3)
    looked = threading.Event()
    poll = EventFollower.poll

    def polled(self: EventFollower) -> list[Event]:
        found = poll(self)
        looked.set()
        return found

    monkeypatch.setattr(EventFollower, "poll", polled)
    with ended_by_shrink(cast(Any, launcher), tmp_path):
        assert looked.wait(30)
        events.rename(tmp_path / "earlier")
        with contextlib.closing(EventLog(events)) as log:
            log.append("job_started", 0)
            log.append("generation_formed", 1, nodes=3)
            log.append("hint_applied", 1, target_nodes=1)
            assert launcher.told.wait(30)
    assert launcher.sent == [signal.SIGTERM]
