"""What a launch decides by itself: its work directory, GPUs, and the events that it goes on from."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.checkpoint.remote import RemoteStore
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.events import Event, EventError, EventLog, read_events
from elastic_launcher.launcher import launch
from elastic_launcher.launcher.sites import fit_gpus
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import WorkDirHeld, claim
from tests.support.checkpoints import publish_on

IN_CLUSTER = JobConfig(
    script="train.py", engine="kubernetes", work_dir="job", checkpoint_dir="/work/checkpoints", orphan_timeout=0.2
)


def test_in_a_cluster_a_work_directory_is_waited_for_until_its_launcher_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    earlier = claim(IN_CLUSTER, tmp_path)

    def say(message: str) -> None:
        told.append(message)
        earlier.close()  # as the process before ends

    monkeypatch.setattr(launch, "say", say)
    with launch.claim_in_time(dataclasses.replace(IN_CLUSTER, orphan_timeout=60.0), tmp_path) as work_dir:
        assert work_dir.past.term == 2
    assert len(told) == 1 and told[0].endswith("that may be the launcher before this one, which ends: it is waited for")


def test_in_a_cluster_a_work_directory_that_stays_held_is_worth_another_try_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with claim(IN_CLUSTER, tmp_path):
        assert launch.launch(IN_CLUSTER, tmp_path) == 75
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, "that it waits is said once"
    assert said[1].endswith("it was not given up within 0.2 s (--orphan-timeout): try again later")


def test_on_one_machine_a_work_directory_that_is_held_is_refused_at_once(tmp_path: Path) -> None:
    config = dataclasses.replace(IN_CLUSTER, engine="local", orphan_timeout=60.0)
    with claim(config, tmp_path), pytest.raises(WorkDirHeld, match="belongs to a job that is alive"):
        launch.launch(config, tmp_path)


SHUT = OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Stale:
    """Stands for a volume that is away for so many looks."""

    def __init__(self, looks: int, error: OSError = SHUT) -> None:
        self.looks = looks
        self.error = error

    def mkdir(self, path: Path, **options: Any) -> None:
        self.looks -= 1
        if self.looks >= 0:
            raise self.error
        os.makedirs(path, exist_ok=True)


def shut(monkeypatch: pytest.MonkeyPatch, volume: Stale) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda path, **options: volume.mkdir(path, **options))
    monkeypatch.setattr("elastic_launcher.host.transient.RETRY_SECONDS", (0.01,))


def test_in_a_cluster_a_volume_that_is_away_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shut(monkeypatch, Stale(3))
    launch.claim_in_time(dataclasses.replace(IN_CLUSTER, orphan_timeout=60.0), tmp_path).close()
    (said,) = capsys.readouterr().err.splitlines()
    assert "Stale file handle" in said and said.endswith("that is tried again for 60 s")


def test_in_a_cluster_a_volume_that_stays_away_is_worth_another_try_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shut(monkeypatch, Stale(1000))
    assert launch.launch(IN_CLUSTER, tmp_path) == 75
    assert capsys.readouterr().err.splitlines()[-1].endswith("was away for 0.2 s (--orphan-timeout): try again later")


@pytest.mark.parametrize(
    ("engine", "error"), [("local", SHUT), ("kubernetes", PermissionError(errno.EACCES, "Permission denied"))]
)
def test_a_volume_of_this_machine_and_one_that_is_not_ours_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, error: OSError
) -> None:
    shut(monkeypatch, Stale(1, error))
    with pytest.raises(ConfigError, match="the work directory .* can't be written"):
        launch.launch(dataclasses.replace(IN_CLUSTER, engine=engine), tmp_path)


@pytest.mark.parametrize(
    ("found", "most", "said"),
    [
        (0, 3, ""),
        (6, 3, ""),
        (7, 3, ""),
        (5, 2, "at most 2 nodes of 2 ranks, and not 3: this machine has 5 GPUs"),
        (2, 1, "at most 1 node of 2 ranks, and not 3: this machine has 2 GPUs"),
    ],
)
def test_there_are_no_more_nodes_than_gpus_for_them(found: int, most: int, said: str) -> None:
    config = JobConfig(script="train.py", max_nodes=3, nproc_per_node=2)
    assert fit_gpus(config, [str(one) for one in range(found)]) == (dataclasses.replace(config, max_nodes=most), said)


def test_too_few_gpus_for_the_fewest_nodes_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "gpus", lambda: ["0"])
    config = JobConfig(script="train.py", min_nodes=2, max_nodes=3)
    with pytest.raises(ConfigError, match="2 nodes of 1 rank need 2 GPUs and this machine has 1 GPU: lower MIN"):
        launch.launch(config, tmp_path / "job")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"v":1,"time":1.0,"kind":"job_started","generation":0}', "no checkpoint in file://.* can be used: .* is of"),
        (
            '{"v":9,"time":1.0,"kind":"job_started","generation":0}',
            "the events in file:.* can't be gone on with: .*9",
        ),
    ],
)
def test_events_in_a_store_that_a_job_can_not_go_on_from_are_not_taken_for_its_own(
    tmp_path: Path, line: str, said: str
) -> None:
    url = (tmp_path / "store").as_uri()
    publish_on(RemoteStore(url, tmp_path / "cache"), 10)
    (tmp_path / "store" / "events").mkdir()
    (tmp_path / "store" / "events" / "t00000001-00000000-0.jsonl").write_text(f"{line}\n")
    config = JobConfig(script="other.py", checkpoint_dir=url, work_dir="job")
    with pytest.raises(ConfigError, match=said):
        launch.launch(config, tmp_path)
    assert not (tmp_path / "job" / "events.jsonl").exists()


def test_events_that_something_else_of_the_job_can_not_read_are_not_blamed_on_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: JobConfig) -> None:
        raise EventError("another file")

    monkeypatch.setattr(launch, "_hint_source", fail)
    with pytest.raises(EventError, match="^another file$"):
        launch.launch(JobConfig(script="train.py", work_dir="job"), tmp_path)


def test_a_launcher_with_an_empty_disk_goes_on_with_the_events_in_the_store(tmp_path: Path) -> None:
    hint = {"gpus": {"guaranteed": 0, "allowed": 0, "limit": 4}}
    (tmp_path / "hints.json").write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": hint}))
    place = {"checkpoint_dir": (tmp_path / "store").as_uri(), "hints": str(tmp_path / "hints.json")}
    for machine in ("a", "b", "c"):
        assert launch.launch(JobConfig(script="train.py", work_dir=machine, **place), tmp_path) == ExitCode.NO_QUOTA
    events = [read_events(tmp_path / machine / "events.jsonl") for machine in ("a", "b", "c")]
    assert [event["term"] for event in events[2] if event.kind == "job_started"] == [1, 2, 3]
    for before, after in pairwise(events):
        assert list(after[: len(before)]) == list(before)


def test_numbers_that_were_used_on_another_machine_are_not_used_again_by_a_later_launch_here(tmp_path: Path) -> None:
    hint = {"gpus": {"guaranteed": 0, "allowed": 0, "limit": 4}}
    (tmp_path / "hints.json").write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": hint}))
    (tmp_path / "store" / "events").mkdir(parents=True)
    started = Event("node_started", 1.0, 0, {"node": 2, "members": [5, 6, 7, 8]})
    (tmp_path / "store" / "events" / "t00000001-00000000-0.jsonl").write_text(started.to_line())
    place = {"checkpoint_dir": (tmp_path / "store").as_uri(), "hints": str(tmp_path / "hints.json")}
    config = JobConfig(script="train.py", work_dir="job", **place)
    assert launch.launch(config, tmp_path) == ExitCode.NO_QUOTA
    with claim(config, tmp_path) as work_dir:
        assert (work_dir.past.first_node, work_dir.past.first_member) == (3, 9)


def test_events_that_found_no_room_are_told_of_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = {"gpus": {"guaranteed": 0, "allowed": 0, "limit": 4}}
    (tmp_path / "hints.json").write_text(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": hint}))
    config = JobConfig(script="train.py", work_dir="job", hints=str(tmp_path / "hints.json"))
    monkeypatch.setattr(EventLog, "_write", lambda log, line: False)
    assert launch.launch(config, tmp_path) == ExitCode.NO_QUOTA
    said = f"events could not be written to {tmp_path / 'job' / 'events.jsonl'}: make room there"
    assert said in capsys.readouterr().err
