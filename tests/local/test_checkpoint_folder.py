"""A coordinator whose nodes are elsewhere: that their folder of checkpoints is its own is made sure of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from elastic_launcher.checkpoint.landmark import landmark_of, missed
from elastic_launcher.config import ExitCode
from elastic_launcher.control import ControlClient
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.engines import NodeSpec
from tests.support.played_coordinator import Job
from tests.support.played_members import Play, PlayedEngine

LANDMARK = landmark_of("digits-x", bytes(32))


@pytest.mark.parametrize("leaves", [False, True])
def test_nodes_elsewhere_know_the_folder_of_checkpoints_for_as_long_as_there_are_any(
    tmp_path: Path, leaves: bool
) -> None:
    claim = tmp_path / "claim"

    async def play() -> int:
        job = Job(tmp_path, home=CoordinatorHost(landmark=LANDMARK), checkpoint_dir=str(claim))

        async def look() -> None:
            await job.log.size(1)
            assert missed(claim, LANDMARK) == ""
            if leaves:
                job.coordinator.leave("another launcher takes over", lambda: None)
            job.play.finish.set()

        return await job.run(look)

    assert asyncio.run(play()) == (ExitCode.STOPPED if leaves else ExitCode.DONE)
    assert missed(claim, LANDMARK) == ("" if leaves else "sees another folder there")


def test_a_node_that_sees_another_folder_ends_the_job_before_its_first_step(tmp_path: Path) -> None:
    class Unfit(PlayedEngine):
        """Has machines that lack what the job needs."""

        def start(self, spec: NodeSpec) -> None:
            with ControlClient(str(tmp_path / "control.json"), f"n{spec.node}") as client:
                handed = client.get(f"/v1/nodes/{spec.node}/job")
                assert handed["landmark"] == {"name": LANDMARK.name, "value": LANDMARK.value}
                client.post(f"/v1/nodes/{spec.node}/unfit", {"message": "node 1 (pod x-1) sees another folder"})

    async def play() -> tuple[Job, int]:
        claim = str(tmp_path / "claim")
        job = Job(
            tmp_path, home=CoordinatorHost(landmark=LANDMARK), checkpoint_dir=claim, engine=Unfit(tmp_path, Play())
        )
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == ExitCode.BAD_USAGE
    assert job.finished["message"] == "node 1 (pod x-1) sees another folder; nothing was saved"


def test_a_launcher_that_can_not_write_there_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "claim").touch()

    async def play() -> tuple[Job, int]:
        job = Job(
            tmp_path, home=CoordinatorHost(landmark=LANDMARK), checkpoint_dir=str(tmp_path / "claim" / "checkpoints")
        )
        return job, await job.run()

    job, exit_code = asyncio.run(play())
    assert exit_code == ExitCode.BAD_USAGE
    assert "the launcher can't write there (Not a directory); launcher and nodes need one" in job.finished["message"]
    assert not job.log.of("node_started")
