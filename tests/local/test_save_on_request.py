"""``elastic-launcher checkpoint`` of a running job: what it takes for its answer, over members that only play."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from elastic_launcher.control import ControlClient
from elastic_launcher.events import EventLog
from elastic_launcher.workdir import Layout
from tests.support.played_coordinator import Job
from tests.support.played_members import PATIENCE


class WrittenJob(Job):
    """A job whose events are in its work directory too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        written, kept = EventLog(Layout(folder).events), self.log.append

        def append(kind: str, generation: int, **fields: Any) -> dict[str, Any]:
            written.append(kind, generation, **fields)
            return kept(kind, generation, **fields)

        self.log.append = append  # type: ignore[method-assign]

    async def tell(self, kind: str, **fields: Any) -> None:
        """Reports something as the job's only member."""
        with ControlClient(str(self.folder / "control.json"), "m1") as client:
            reports = {"reports": [{"kind": kind, **fields}]}
            await asyncio.to_thread(client.post, "/v1/members/1/reports", reports)

    async def ask(self) -> asyncio.subprocess.Process:
        """Starts the command in a job that trains, and waits until the job was asked."""
        await self.log.size(1)
        pipe = asyncio.subprocess.PIPE
        words = ("-m", "elastic_launcher", "checkpoint", str(self.folder))
        command = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe, stderr=pipe)
        await asyncio.wait_for(asyncio.to_thread(self.play.asked.wait), PATIENCE)
        return command


def run(job: WrittenJob, test: Callable[[], Awaitable[asyncio.subprocess.Process]]) -> tuple[int | None, str, str]:
    """Runs a job with a test in it; returns how the command ended, and what it wrote."""

    async def play() -> tuple[int | None, str, str]:
        found: list[asyncio.subprocess.Process] = []

        async def hold() -> None:
            found.append(await test())
            job.play.finish.set()

        await job.run(hold)
        out, err = await asyncio.wait_for(found[0].communicate(), PATIENCE)
        return found[0].returncode, out.decode(), err.decode()

    return asyncio.run(play())


SAVED = {"bytes": 1, "held_seconds": 0.0, "seconds": 0.1}


def test_only_what_is_saved_after_it_was_asked_for_is_the_answer(tmp_path: Path) -> None:
    """A checkpoint was being written when it was asked, and the next one fails at first."""
    job = WrittenJob(tmp_path)

    async def save() -> asyncio.subprocess.Process:
        command = await job.ask()
        await job.tell("saved", step=job.coordinator.state.step, path="before", **SAVED)
        await job.tell("save_failed", step=7, message="the disk is full")
        assert command.stderr is not None
        said = await asyncio.wait_for(command.stderr.readline(), PATIENCE)
        assert b"step 7 could not be saved: the disk is full; the training goes on" in said
        await job.tell("saved", step=8, path="after", **SAVED)
        await command.wait()
        return command

    assert run(job, save) == (0, "step 8 is saved in after\n", "")


def test_a_job_that_ends_meanwhile_says_how_it_ended(tmp_path: Path) -> None:
    job = WrittenJob(tmp_path)

    async def end() -> asyncio.subprocess.Process:
        command = await job.ask()
        await job.tell("save_failed", step=7, message="the disk is full")
        assert command.stderr is not None
        await asyncio.wait_for(command.stderr.readline(), PATIENCE)  # it has the job's answer
        return command

    code, out, err = run(job, end)
    assert (code, out) == (1, "")
    assert "has saved nothing since: it ended with exit code 0 (done: " in err
