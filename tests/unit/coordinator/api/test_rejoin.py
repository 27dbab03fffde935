"""What a launcher that comes back tells members which have not asked yet what to begin with."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.api.rejoin import Rejoin
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.resume.orphans import Takeover
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin
from elastic_launcher.coordinator.rules.takeover import Leftovers, Numbers
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.node_files import NodeFiles
from elastic_launcher.events import Event
from elastic_launcher.workdir import Layout, Past
from tests.support.checkpoints import publish_on, save

CONFIG = JobConfig(script="jobs/train.py", arguments=("--lr", "0.1"), orphan_timeout=0.1)
RUN = [Event("job_started", 100.0, 0, {"resumed_step": 10}), Event("node_started", 101.0, 0, {"node": 1})]


NOBODY: Any = None  # nothing is told in these cases
NUMBERS = [("node_started", 1), ("node_requeued", 2)]


class OneNode:
    """Node 1 lives, and is importing torch."""

    def living(self) -> list[int]:
        return [1]

    def take(self) -> list[int]:
        return [1]


def takeover(config: JobConfig, folder: Path) -> Takeover:
    return Takeover(config, Layout(folder), Past(term=3, first_node=2, first_member=2), RUN, OneNode(), Origin)


def quiet(line: str) -> None:
    pass


def gathered(folder: Path) -> Leftovers | None:
    return asyncio.run(takeover(CONFIG, folder).gather(Rejoin(NOBODY, [].append, lambda member: False)))


@pytest.mark.parametrize("place", [None, "{}/elsewhere", "file://{}/store"])
def test_members_begin_with_what_was_found_wherever_that_is(tmp_path: Path, place: str | None) -> None:
    config = replace(CONFIG, checkpoint_dir=None if place is None else place.format(tmp_path))
    publish_on(open_store(config.checkpoint_dir, Layout(tmp_path).checkpoints), 10)
    found = find_origin(config, Layout(tmp_path), Past(term=2), quiet).folder
    assert found is not None and found.name.startswith("step-00000010")
    assert takeover(config, tmp_path).origin().folder == found


def test_what_was_saved_last_is_known_from_the_events_where_the_pointer_can_not_be_read(tmp_path: Path) -> None:
    pointer = Layout(tmp_path).checkpoints / "latest.json"
    path = str(save(pointer.parent, 10))
    pointer.unlink()
    pointer.symlink_to(pointer)
    run = [*RUN, Event("checkpoint_saved", 102.0, 1, {"step": 10, "path": path})]
    mine = Takeover(CONFIG, Layout(tmp_path), Past(term=3, first_node=2, first_member=2), run, OneNode(), Origin)
    left = Leftovers([1], {}, {}, mine.record, Numbers(2, 2, 0))
    saved = mine.take_over(left, Origin().first_state(CONFIG, "host:1"), 0.0).state.saved
    assert saved is not None and (saved.step, saved.path) == (10, path)


@pytest.mark.parametrize(("ended", "known"), [(1, False), (2, True)])
def test_how_a_rank_ended_whose_pod_was_taken_back_is_not_how_the_next_one_did(
    tmp_path: Path, ended: int, known: bool
) -> None:
    layout = Layout(tmp_path)
    layout.nodes.mkdir()
    find_origin(CONFIG, layout, Past(), quiet)
    NodeFiles(CONFIG, layout, "host:1", CoordinatorHost()).note_exit(1, 0, 75, None, first_member=ended)
    given = [Event(kind, 101.0, 0, {"node": 1, "members": [one]}) for kind, one in NUMBERS]
    mine = Takeover(CONFIG, layout, Past(3, 2, 3), [RUN[0], *given], OneNode(), Origin)
    left = asyncio.run(mine.gather(Rejoin(NOBODY, [].append, mine.record.superseded)))
    assert left is not None and left.exits == ({(1, 0): Exit(75)} if known else {})


def test_members_begin_where_the_checkpoint_is(tmp_path: Path) -> None:
    save(Layout(tmp_path).checkpoints, 10, phase=1, epoch=2, sums={"0.end.1": 5})
    find_origin(CONFIG, Layout(tmp_path), Past(term=2), quiet)
    mine = takeover(CONFIG, tmp_path)
    left = Leftovers([1], {}, {}, mine.record, Numbers(2, 2, 0))
    state = mine.take_over(left, mine.origin().first_state(CONFIG, "host:1"), 0.0).state
    assert (state.step, state.phase, state.epoch, state.sums) == (10, 1, 2, {"0.end.1": 5})
    assert state.rules.resumes is not None


@pytest.mark.parametrize("engine", ["local", "kubernetes"])
@pytest.mark.parametrize("cause", ["hint", "notice"])
def test_what_took_a_node_holds_growth_back_unless_the_node_is_replaced_at_once(
    tmp_path: Path, engine: str, cause: str
) -> None:
    config = replace(CONFIG, engine=engine, checkpoint_dir=str(tmp_path))
    gone = Event("node_left", time.time() - 5, 1, {"node": 1, "cause": cause})
    run = [*RUN, Event("generation_formed", 102.0, 1, {"formation": 1, "members": [{"member": 1, "node": 1}]}), gone]
    mine = Takeover(config, Layout(tmp_path), Past(term=3, first_node=2, first_member=2), run, OneNode(), Origin)
    left = Leftovers([1], {}, {}, mine.record, Numbers(2, 2, 1))
    ago = mine.take_over(left, mine.origin().first_state(config, "host:1"), 0.0).taken_seconds_ago
    assert (ago is None) == (engine == "kubernetes" and cause == "notice")


def test_members_begin_from_the_beginning_where_nothing_was_found(tmp_path: Path) -> None:
    find_origin(CONFIG, Layout(tmp_path), Past(), quiet)
    assert takeover(CONFIG, tmp_path).origin().folder is None
    assert gathered(tmp_path) is not None


def test_a_job_that_has_not_begun_is_not_adopted_where_nobody_knows_from_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, document: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    layout = Layout(tmp_path)
    find_origin(CONFIG, layout, Past(), quiet)
    save(layout.checkpoints, 10)
    monkeypatch.setattr("elastic_launcher.coordinator.resume.resume_point.write_json", refuse)
    assert find_origin(CONFIG, layout, Past(term=2), quiet).folder is not None
    assert gathered(tmp_path) is None
