"""A launcher that is killed and started again goes on with the ranks that train: none restarts, no step is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import resizes
from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import (
    SCRIPT,
    assert_each_sample_once,
    assert_same_model,
    read_ledgers,
    train_plain,
    without_lost,
)
from tests.support.resizes import LONG, allow

SAMPLES, BATCH, MICRO = 97, 24, 5


class Stage:
    """One job whose launcher is killed and started again.

    Attributes:
        job: The launcher that runs now.
    """

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None, **more: Any) -> None:
        self.folder = folder
        self.work_dir = folder / "job"
        settings = {"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, "pace": 0.004, **more}
        self._arguments = (*options, "--", str(SCRIPT), json.dumps(settings))
        self._environment = environment

    @contextmanager
    def launcher(self) -> Iterator[Launcher]:
        """Runs a launcher, and leaves what it started alone if the test has killed it by then."""
        environment, self._environment = self._environment, None  # what is to go wrong does so once
        with launched(*self._arguments, cwd=self.folder, work_dir=self.work_dir, environment=environment) as job:
            yield job

    def finish(self, job: Launcher) -> int:
        """Has the training end; returns the number of steps, of each sample once, with the plain model."""
        (self.folder / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(self.work_dir)
        steps = assert_each_sample_once(read_ledgers(self.folder), SAMPLES, BATCH, MICRO)
        assert_same_model(self.folder, train_plain(SAMPLES, BATCH, steps))
        assert job.events.of("job_finished")[0]["steps"] == steps
        assert len(job.events.of("job_started")) == 1
        return steps


def kill(job: Launcher) -> None:
    """Kills the launcher alone."""
    job.process.kill()
    job.process.wait()


def pids_of(job: Launcher) -> dict[int, int]:
    """Returns the process of each member that lives."""
    return {
        member["member"]: member["pid"]
        for node in job.status()["nodes"]
        for member in node["members"]
        if member["pid"] is not None
    }


def adopted(job: Launcher, times: int) -> dict[str, Any]:
    """Waits until a launcher has come back so many times, and training goes on; returns what it said last."""
    job.events.wait("coordinator_adopted", lambda event: event["term"] > times, LONG)
    found = job.events.of("coordinator_adopted")[-1]
    job.events.wait("progress", lambda event: event["step"] > found["step"] + 1, LONG)
    return found


@pytest.mark.thorough
def test_ranks_at_rest_go_on_under_a_launcher_that_comes_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "2:2")
    with stage.launcher() as first:
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        before = pids_of(first)
        kill(first)
        stage.work_dir = tmp_path / "the same by another name"
        stage.work_dir.symlink_to(first.work_dir)
        with stage.launcher() as second:
            found = adopted(second, 1)
            assert pids_of(second) == before
            stage.finish(second)
            assert_no_process(first.work_dir)
    assert found["generation"] == second.events.of("generation_formed")[-1]["generation"]
    assert {one["member"]: one["pid"] for one in found["members"]} == before
    assert len(second.events.of("generation_formed")) <= 2, "no generation was formed for it"


def formed(job: Launcher, world_size: int, term: int) -> dict[str, Any]:
    """Waits until a group of that size trains that was formed, or has been adopted, under that launcher or later."""

    def trains() -> dict[str, Any] | None:
        found = [e for e in job.events.all() if e["kind"] in ("generation_formed", "coordinator_adopted")]
        told = [e for e in found if e["kind"] == "coordinator_adopted" and e["term"] >= term]
        last = found[-1] if found else None
        return last if told and last is not None and len(last["members"]) == world_size else None

    last = until(trains, f"{world_size} ranks train in term {term}", LONG)
    job.events.wait("progress", lambda e: e["step"] > last.get("first_step", last.get("step")) + 1, LONG)
    return last


MOMENTS = [
    pytest.param("launcher=form@2:1", (2, 3), marks=pytest.mark.thorough, id="when the group is to grow"),
    pytest.param("launcher=give@20:1", (2, 3), marks=pytest.mark.thorough, id="when a joiner gets its state"),
    pytest.param("launcher=receive@20:3", (2, 3), marks=pytest.mark.thorough, id="when a joiner has its state"),
    pytest.param("launcher=form@3:3", (2, 3, 2), marks=pytest.mark.thorough, id="when a node is to leave"),
    pytest.param("launcher=form@3:1", (2, 3, 2), marks=pytest.mark.thorough, id="when the group is to shrink"),
]


@pytest.mark.parametrize(("faults", "sizes"), MOMENTS)
def test_a_resize_that_is_under_way_comes_to_its_end(tmp_path: Path, faults: str, sizes: tuple[int, ...]) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, sizes[0])
    stage = Stage(tmp_path, "--nodes", "2:3", "--hints", str(hints), environment={"ELASTIC_FAULT": faults})
    with stage.launcher() as first:
        for number, size in enumerate(sizes[:-1]):
            allow(hints, size)
            resizes.formed(first, size, number)
        first.events.wait("progress", lambda event: event["step"] > 30, LONG)
        before = pids_of(first)
        allow(hints, sizes[-1])
        first.process.wait(LONG)
        with stage.launcher() as second:
            formed(second, sizes[-1], 2)
            assert all(before[member] == pid for member, pid in pids_of(second).items() if member in before)
            stage.finish(second)
    assert not second.events.of("node_lost")


@pytest.mark.thorough
def test_a_joiner_that_comes_up_meanwhile_is_admitted(tmp_path: Path) -> None:
    """It calls ``init`` while there is nobody to join."""
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    stage = Stage(tmp_path, "--nodes", "1:2", "--hints", str(hints))
    with stage.launcher() as first:
        resizes.formed(first, 1, 0)
        allow(hints, 2)
        first.node_pid(2, LONG)  # the event comes before the node is there
        kill(first)
        log = stage.work_dir / "logs" / "2-0.log"
        until(log.exists, "the joiner's script has begun", LONG)
        with stage.launcher() as second:
            formed(second, 2, 2)
            stage.finish(second)
    assert [event["node"] for event in second.events.of("node_started")] == [1, 2], "the same joiner"


LOSSES = [
    pytest.param(
        "launcher=micro-batch@20:1,reduction@20:1", (1,), marks=pytest.mark.thorough, id="of a rank meanwhile"
    ),
    pytest.param(
        "reduction@20:1,launcher=meet@20:2", (1,), marks=pytest.mark.thorough, id="of which the ranks recover"
    ),
    pytest.param(
        "launcher=micro-batch@20:1,reduction@20:1,reduction@20:3",
        (1, 3),
        marks=pytest.mark.thorough,
        id="of two ranks meanwhile",
    ),
    pytest.param(
        "reduction@20:1,launcher=meet@20:2,meet@20:3",
        (1, 3),
        marks=pytest.mark.thorough,
        id="of a second one while they recover",
    ),
    pytest.param(
        "reduction@20:3,launcher=form@2:1",
        (3,),
        marks=pytest.mark.thorough,
        id="when the others are to form another group",
    ),
]


@pytest.mark.parametrize(("faults", "lost"), LOSSES)
def test_a_loss_is_borne_by_the_launcher_that_comes_back(tmp_path: Path, faults: str, lost: tuple[int, ...]) -> None:
    stage = Stage(tmp_path, "--nodes", "3:3", environment={"ELASTIC_FAULT": faults})
    with stage.launcher() as first:
        first.process.wait(LONG)
        with stage.launcher() as second:
            formed(second, 3, 2)
            survivors = {one["member"] for one in second.events.of("generation_formed")[-1]["members"]}
            stage.finish(second)
    assert sorted(event["node"] for event in second.events.of("node_lost")) == list(lost)
    assert {1, 2, 3} - set(lost) <= survivors, "none of the others was restarted"


def test_what_an_administrator_and_a_machine_ask_for_meanwhile_is_done(tmp_path: Path) -> None:
    """The hint is lowered and raised, and a node is given notice, while nobody takes either."""
    hints = tmp_path / "hints.json"
    allow(hints, 2)
    stage = Stage(tmp_path, "--nodes", "1:3", "--hints", str(hints))
    with stage.launcher() as first:
        first.events.wait("generation_formed", lambda event: event["world_size"] == 2, LONG)
        before = pids_of(first)
        kill(first)
        allow(hints, 1)
        with stage.launcher() as second:
            formed(second, 1, 2)
            assert pids_of(second)[1] == before[1]
            allow(hints, 2)
            formed(second, 2, 2)
            kill(second)
            os.kill(second.node_pid(1), signal.SIGTERM)
            with stage.launcher() as third:
                third.events.wait("node_left", lambda event: event["cause"] == "notice", LONG)
                formed(third, 1, 3)
                stage.finish(third)
    assert [event["node"] for event in third.events.of("notice")] == [1]


@pytest.mark.thorough
def test_a_job_that_ends_meanwhile_is_done(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "2:2")
    with stage.launcher() as first:
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        kill(first)
        (tmp_path / "stop").touch()
        until((tmp_path / "model.pt").exists, "the script has ended", LONG)
        with stage.launcher() as second:
            stage.finish(second)
    assert second.events.of("job_finished")[0]["message"].startswith("done (the test has seen enough)")


@pytest.mark.thorough
def test_a_launcher_that_came_back_saves_and_stops_when_it_is_told_to(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "2:2")
    with stage.launcher() as first:
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        kill(first)
        with stage.launcher() as second:
            adopted(second, 1)
            second.process.send_signal(signal.SIGTERM)
            assert second.wait(LONG) == 75, second.stderr
            assert_no_process(stage.work_dir)
    saved = second.events.of("checkpoint_saved")[-1]
    assert f"step {saved['step']} is saved in {saved['path']}" in second.stderr.splitlines()[-1]


@pytest.mark.thorough
def test_a_script_that_fails_meanwhile_says_why(tmp_path: Path) -> None:
    environment = {"ELASTIC_FAULT": "launcher=micro-batch@20:1"}
    stage = Stage(tmp_path, "--nodes", "2:2", environment=environment, fault="exception", fault_rank=1, fault_step=20)
    with stage.launcher() as first:
        first.process.wait(LONG)
        with stage.launcher() as second:
            assert second.wait(LONG) == 1, second.stderr
            assert_no_process(stage.work_dir)
    assert "ValueError: a mistake in the script" in second.events.of("job_finished")[0]["message"]


@pytest.mark.parametrize(
    "times", [pytest.param(3, marks=pytest.mark.quick), pytest.param(20, marks=pytest.mark.thorough)]
)
def test_launchers_come_and_go_and_no_rank_notices(tmp_path: Path, times: int) -> None:
    """Each at another address and with an empty store; every second one resizes the job."""
    hints = tmp_path / "hints.json"
    sizes = [2 + (number // 2) % 2 for number in range(times + 1)]
    allow(hints, 2)
    stage = Stage(tmp_path, "--nodes", "2:3", "--hints", str(hints))
    addresses = set()
    with ExitStack() as stack:
        job = stack.enter_context(stage.launcher())
        resizes.formed(job, 2, 0)
        before = pids_of(job)
        for number in range(1, times + 1):
            kill(job)
            allow(hints, sizes[number])
            job = stack.enter_context(stage.launcher())
            formed(job, sizes[number], number + 1)
            pids = pids_of(job)
            assert {member: pids[member] for member in (1, 2)} == {member: before[member] for member in (1, 2)}
            control = json.loads((stage.work_dir / "control.json").read_text())
            addresses.add((control["url"], control["store"]))
        steps = stage.finish(job)
    assert len(addresses) == times
    assert [event["term"] for event in job.events.of("coordinator_adopted")] == list(range(2, times + 2))
    generations = [event["generation"] for event in job.events.of("generation_formed")]
    assert generations == list(range(1, len(generations) + 1))
    assert len(generations) > times // 2 and steps > 0


def test_two_launchers_never_own_one_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "1:1")
    with stage.launcher() as first:
        first.events.wait("progress", lambda event: event["step"] > 5, LONG)
        kill(first)
        with stage.launcher() as second:
            adopted(second, 1)
            with stage.launcher() as third:
                assert third.wait(LONG) == 2
                assert f"process {second.process.pid} on {socket.gethostname()}" in third.stderr
                stage.finish(second)


def test_of_two_launchers_that_are_started_together_one_owns_the_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--nodes", "1:1")
    with stage.launcher() as one, stage.launcher() as other:
        until(lambda: {one.process.poll(), other.process.poll()} != {None}, "one of them is refused", LONG)
        owner, refused = (one, other) if one.process.poll() is None else (other, one)
        assert refused.wait(LONG) == 2
        assert f"process {owner.process.pid} on {socket.gethostname()}" in refused.stderr
        stage.finish(owner)


@pytest.mark.thorough
@pytest.mark.parametrize("halting", [True, False], ids=["that were being stopped", "with other options"])
def test_ranks_that_can_not_go_on_are_ended_and_the_job_resumes(tmp_path: Path, halting: bool) -> None:
    stage = Stage(tmp_path, "--nodes", "2:2", "--checkpoint-every", "1h" if halting else "7 steps")
    with stage.launcher() as first:
        first.events.wait("progress" if halting else "checkpoint_saved", lambda event: event["step"] > 14, LONG)
        before = pids_of(first)
        if halting:
            first.process.send_signal(signal.SIGTERM)
            first.events.wait("checkpoint_saved", timeout=LONG)  # the ranks know, and are about to end
        kill(first)
        other = Stage(tmp_path, "--nodes", "2:2", "--checkpoint-every", "1h" if halting else "8 steps")
        with other.launcher() as second:
            started = second.events.wait("job_started", lambda event: event["term"] == 2, LONG)
            second.events.wait("progress", lambda event: event["step"] > started["resumed_step"] + 5, LONG)
            assert not set(pids_of(second).values()) & set(before.values())
            (tmp_path / "stop").touch()
            assert second.wait(LONG) == 0, second.stderr
    assert second.events.of("coordinator_adopted") == []
    ledgers = without_lost(read_ledgers(tmp_path), second.events.all())
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))
