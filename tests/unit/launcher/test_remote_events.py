"""Events beside the checkpoints in a store: what one machine writes is found on another, in order, each once."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.event_replay import past_after
from elastic_launcher.events import EventLog, read_events
from elastic_launcher.launcher import remote_events
from elastic_launcher.launcher.remote_events import copied_events, recall_events
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Past
from tests.support.launches import until
from tests.support.object_store import ObjectStore, object_store


class Place:
    """A store, and machines whose disks are empty."""

    def __init__(self, url: str, parts: Path, folder: Path) -> None:
        self.config = JobConfig(script="train.py", checkpoint_dir=url)
        self.parts = parts
        self._folder = folder
        self.said: list[str] = []

    def machine(self, name: str) -> Path:
        """Returns where a machine has its events."""
        (self._folder / name).mkdir(exist_ok=True)
        return self._folder / name / "events.jsonl"

    def write(self, path: Path, term: int, *steps: int) -> None:
        """Writes a generation for each step, as a launcher that lives until all of it is copied."""
        with copied_events(self.config, path, term, self.said.append):
            log = EventLog(path)
            for step in steps:
                log.append("generation_formed", step, first_step=step)
            log.close()

    def steps(self, path: Path) -> list[int]:
        return [event["first_step"] for event in read_events(path)]


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield Place((tmp_path / "store").as_uri(), tmp_path / "store" / "events", tmp_path)
        return
    with object_store(tmp_path / "buckets") as store:
        yield Place(store.url, store.bucket / "jobs" / "digits" / "events", tmp_path)


def test_each_machine_goes_on_with_the_events_of_those_before(place: Place) -> None:
    assert not recall_events(place.config, place.machine("a"))
    for term, name in enumerate("abc", 1):
        path = place.machine(name)
        assert recall_events(place.config, path) == (term > 1)
        place.write(path, term, 10 * term, 10 * term + 1)
    assert place.steps(place.machine("c")) == [10, 11, 20, 21, 30, 31]
    assert recall_events(place.config, place.machine("d"))
    assert place.machine("d").read_bytes() == place.machine("c").read_bytes()
    assert not place.said


def test_events_that_do_not_fit_on_the_disk_are_fetched_again(place: Place) -> None:
    place.write(place.machine("a"), 1, *range(100))
    there = place.machine("b")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
    try:
        with pytest.raises(OSError):
            recall_events(place.config, there)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert recall_events(place.config, there)
    assert place.steps(there) == [*range(100)]


def test_what_a_killed_launcher_had_not_copied_is_copied_by_the_next_on_its_disk(place: Place) -> None:
    path = place.machine("a")
    place.write(path, 1, 1)
    log = EventLog(path)
    log.append("generation_formed", 2, first_step=2)
    log.close()
    assert not recall_events(place.config, path), "what is there counts"
    place.write(path, 2, 3)
    recall_events(place.config, place.machine("b"))
    assert place.steps(place.machine("b")) == [1, 2, 3]


def test_a_launcher_that_was_replaced_and_does_not_know_it_spoils_nothing(place: Place) -> None:
    old, new = place.machine("old"), place.machine("new")
    place.write(old, 1, 1)
    recall_events(place.config, new)
    place.write(new, 2, 2)
    place.write(old, 1, 9)
    place.write(new, 3, 3)
    recall_events(place.config, place.machine("c"))
    assert sorted(place.steps(place.machine("c"))) == [1, 2, 3, 9]


def test_what_matters_is_copied_at_once_and_progress_now_and_then(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_events, "LOOK_SECONDS", 0.02)
    path = place.machine("a")
    with copied_events(place.config, path, 1, place.said.append):
        log = EventLog(path)
        log.append("generation_formed", 1, first_step=1)
        until(lambda: place.parts.is_dir() and [*place.parts.iterdir()], "the first part")
        for step in range(20):
            log.append("progress", 1, step=step)
        log.append("node_lost", 1, node=1)
        until(lambda: len([*place.parts.iterdir()]) > 1, "the second part")
        before = len([*place.parts.iterdir()])
        monkeypatch.setattr(remote_events, "MINOR_SECONDS", 0.1)
        log.append("progress", 1, step=20)
        until(lambda: len([*place.parts.iterdir()]) > before, "a part of progress alone")
        log.close()
    assert recall_events(place.config, place.machine("b"))
    assert place.machine("b").read_bytes() == path.read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with object_store(tmp_path / "buckets") as found:
        yield found


def test_a_store_that_is_away_is_tried_again_and_at_the_end_it_is_said(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_events, "LOOK_SECONDS", 0.02)
    place = Place(store.url, store.bucket / "jobs" / "digits" / "events", tmp_path)
    path = place.machine("a")
    with copied_events(place.config, path, 1, place.said.append):
        log = EventLog(path)
        log.append("generation_formed", 1, first_step=1)
        until(lambda: place.parts.is_dir() and [*place.parts.iterdir()], "the first part")
        store.stop()
        log.append("generation_formed", 2, first_step=2)
        store.start()
        until(lambda: len([*place.parts.iterdir()]) > 1, "the second part")
        store.stop()
        log.append("generation_formed", 3, first_step=3)
        log.close()
    ((said),) = place.said
    assert said.startswith(f"the last events could not be written to {store.url}: ")
    assert said.endswith(f"; all are in {path}")
    with pytest.raises(ConfigError, match="the checkpoints in s3://models/jobs/digits can't be read: "):
        recall_events(place.config, place.machine("b"))


def test_a_folder_has_no_copies(tmp_path: Path) -> None:
    place = Place("", tmp_path, tmp_path)
    for config in (JobConfig(script="x.py"), JobConfig(script="x.py", checkpoint_dir=str(tmp_path / "claim"))):
        place.config = config
        place.write(place.machine("a"), 1, 1)
        assert not recall_events(config, place.machine("b"))
    assert not (tmp_path / "claim").exists()


def test_numbers_that_events_tell_of_are_not_used_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("node_started", 0, node=3, members=[5, 6])
    log.append("generation_formed", 4)
    log.close()
    past = past_after(Past(term=2), read_events(tmp_path / "events.jsonl"))
    assert past == Past(term=2, first_node=4, first_member=7, generations=4)
    assert past_after(Past(2, 9, 20, 8), read_events(tmp_path / "events.jsonl")) == Past(2, 9, 20, 8)
