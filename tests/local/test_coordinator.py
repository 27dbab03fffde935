"""A whole coordinator, with real requests, over members that only play training."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.control import ControlClient
from elastic_launcher.coordinator.runtime.store import Store
from elastic_launcher.engines import NodeSpec
from tests.support.checkpoints import save
from tests.support.played_coordinator import Job
from tests.support.played_members import Play, PlayedEngine


@pytest.mark.quick
def test_a_job_starts_grows_shrinks_and_is_done(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int, dict[str, Any]]:
        job = Job(tmp_path, "1:3", nproc=2)
        status: dict[str, Any] = {}

        async def resize() -> None:
            await job.log.size(6)
            await asyncio.to_thread(job.engine.notice, 2)
            await job.log.wait(lambda event: event["kind"] == "generation_formed" and event["cause"] == "notice")
            with ControlClient(str(tmp_path / "control.json"), "cli") as client:
                status.update(await asyncio.to_thread(client.get, "/v1/status"))
            job.play.finish.set()

        return job, await job.run(resize), status

    job, exit_code, status = asyncio.run(play())
    assert exit_code == 0
    formed = job.log.of("generation_formed")
    assert (formed[-2]["world_size"], formed[-1]["world_size"], formed[-1]["cause"]) == (6, 4, "notice")
    assert [event["generation"] for event in formed] == list(range(1, len(formed) + 1))
    members = formed[-1]["members"]
    assert sorted(member["member"] for member in members) == [1, 2, 5, 6]
    assert [member["node"] for member in members] in ([1, 1, 3, 3], [3, 3, 1, 1]), "whichever was ready first"
    assert members == [member for member in formed[-2]["members"] if member["node"] != 2], "none changes its place"
    assert job.finished["message"].startswith("done: ")
    assert job.coordinator.message == job.finished["message"]
    assert job.engine.closed
    assert job.seen == job.log.all, "what is shown is what is written"
    assert [event["kind"] for event in job.log.all][0] == "job_started"
    assert (status["phase"], status["world_size"], status["target"]["nodes"]) == ("training", 4, 2)
    assert status["progress"]["loss"] == 0.5


def test_control_is_for_this_user_on_this_machine_and_gone_at_the_end(tmp_path: Path) -> None:
    async def play() -> dict[str, Any]:
        job = Job(tmp_path)
        found: dict[str, Any] = {}

        async def look() -> None:
            await job.log.size(1)
            path = tmp_path / "control.json"
            found.update(json.loads(path.read_text()), mode=stat.S_IMODE(path.stat().st_mode))
            job.play.finish.set()

        assert await job.run(look) == 0
        return found

    found = asyncio.run(play())
    assert found["mode"] == 0o600
    assert (found["v"], found["term"], len(found["key"])) == (1, 1, 64)
    for address in (found["url"].removeprefix("http://"), found["store"]):
        host, port = address.split(":")
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5).close()


def test_groups_meet_in_the_store(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    async def play() -> bytes:
        job = Job(tmp_path, store=Store())
        found = []

        def meet(address: str) -> bytes:
            from torch.distributed import TCPStore

            host, port = address.split(":")
            client = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
            client.set("formation/1/rank0", "here")
            return bytes(client.get("formation/1/rank0"))

        async def look() -> None:
            await job.log.size(1)
            address = json.loads((tmp_path / "control.json").read_text())["store"]
            found.append(await asyncio.to_thread(meet, address))
            job.play.finish.set()

        assert await job.run(look) == 0
        return found[0]

    assert asyncio.run(play()) == b"here"


def test_a_job_whose_only_node_is_killed_restarts_until_it_gets_no_further(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path, "1:1")

        async def kill() -> None:
            for number in (1, 2, 3):
                there = "generation_formed", number
                await job.log.wait(lambda event, there=there: (event["kind"], event["generation"]) == there)
                job.play.step = 0
                job.engine.kill(number)

        return job, await job.run(kill)

    job, exit_code = asyncio.run(play())
    assert exit_code == 1
    message = job.finished["message"]
    assert "member 3 (rank 0, node 3) was killed by SIGKILL after step 1" in message
    assert "no other node holds the state; nothing was saved" in message
    assert "it restarted 2 times and got no further than step 1" in message
    assert "line 29" in message
    assert "line 9\n" not in message, "the last 20 lines"
    assert [event["node"] for event in job.log.of("node_lost")] == [1, 2, 3]
    assert [event["cause"] for event in job.log.of("generation_formed")] == ["start", "failure", "failure"]


def test_a_job_whose_checkpoints_can_not_be_read_was_stopped_after_training_began(tmp_path: Path) -> None:
    """Exit code 2 would say that nothing was started."""
    job = Job(tmp_path, orphan_timeout=0.1)
    state = save(tmp_path / "checkpoints", 3) / "state.json"
    state.unlink()
    state.symlink_to(state)  # the system has an error of its own for it, as for a mount that is away

    async def kill() -> None:
        await job.log.size(1)
        job.engine.kill(1)

    assert asyncio.run(job.run(kill)) == 75
    assert "all nodes are gone, and the job can't restart: the checkpoints in " in job.finished["message"]
    assert "that is tried again for 0 s" in [event["message"] for event in job.log.of("warning")][-1]


def test_an_exception_is_told_with_its_traceback(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path, "2:2")
        job.play.behaviour[1] = "fail"
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == 1
    assert "failed before training began: ValueError: boom" in job.finished["message"]
    assert job.finished["message"].endswith("  Traceback (most recent call last):\n  ValueError: boom")


def test_an_exit_code_is_told_with_the_last_lines(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path)
        job.play.behaviour[1] = "exit"
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == 1
    assert "the script of member 1 (node 1) exited with code 3" in job.finished["message"]
    assert job.finished["message"].endswith("  line 29")


def test_what_the_parent_of_a_rank_wrote_counts(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path)
        job.play.behaviour[1] = "exit"
        (tmp_path / "nodes" / "1-0.exit").write_text(json.dumps({"exit_code": 7, "signal": None}))
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == 1
    assert "exited with code 7" in job.finished["message"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_signals_end_the_job_any_number_of_them(tmp_path: Path, number: int, exit_code: int) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path, "2:2")

        async def interrupt() -> None:
            await job.log.size(2)
            for _ in range(3):
                os.kill(os.getpid(), number)

        return job, await job.run(interrupt)

    job, found = asyncio.run(play())
    assert found == exit_code
    assert job.finished["message"].endswith("nothing was saved")
    assert job.engine.closed


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path)

        async def hang_up_and_stop() -> None:
            await job.log.size(1)
            for number in (signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)

        return job, await job.run(hang_up_and_stop)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job, found = asyncio.run(play())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found == 75
    assert job.finished["message"].startswith("stopped by SIGTERM ")


class BrokenEngine(PlayedEngine):
    """An engine with a bug."""

    def start(self, spec: NodeSpec) -> None:
        raise RuntimeError("a bug")


class BrokenPoll(PlayedEngine):
    """An engine with another one."""

    def poll(self) -> Any:
        if self.started:
            raise RuntimeError("a bug")
        return []


@pytest.mark.parametrize("broken", [BrokenEngine, BrokenPoll])
def test_an_error_of_our_own_is_70_and_leaves_nothing(tmp_path: Path, broken: type[PlayedEngine]) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path, engine=broken(tmp_path, Play()))
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == 70
    assert job.finished["message"] == "the launcher failed: RuntimeError: a bug"
    assert job.engine.closed


def test_a_launcher_that_is_cancelled_leaves_no_node(tmp_path: Path) -> None:
    async def play() -> Job:
        job = Job(tmp_path)
        running = asyncio.ensure_future(job.coordinator.run())
        await job.log.size(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return job

    assert asyncio.run(play()).engine.closed


def test_members_that_differ_end_the_job(tmp_path: Path) -> None:
    async def play() -> tuple[Job, int]:
        job = Job(tmp_path, "2:2")
        job.play.fingerprints[2] = {"dataset": "10 samples"}
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == 1
    assert "dataset is '9 samples' on the first and '10 samples' on the second" in job.finished["message"]
