"""Sources of hints: real files, edited in every way that editors and administrators have."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from elastic_launcher.hints import FileSource, HintRead
from tests.support.hint_documents import hint, text

PATIENCE = 20.0
Next = Callable[[], Awaitable[HintRead]]


def follow(path: Path, steps: Callable[[Next], Awaitable[None]]) -> None:
    """Runs the steps of a test on what a source yields from a file."""

    async def both() -> None:
        async with aclosing(FileSource(path).changes()) as changes:

            async def following() -> HintRead:
                return await asyncio.wait_for(anext(changes), PATIENCE)

            await steps(following)

    asyncio.run(both())


def replace(path: Path, content: str) -> None:
    aside = path.with_name("aside")
    aside.write_text(content)
    os.replace(aside, path)


def good(allowed: int) -> str:
    return text(hint(allowed))


def test_every_edit_is_told(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    path.write_text(good(1))

    async def steps(following: Next) -> None:
        assert await following() == HintRead(good(1).encode(), "0")
        path.write_text(good(2))
        assert await following() == HintRead(good(2).encode(), "0")
        replace(path, good(3))
        assert await following() == HintRead(good(3).encode(), "0")

    follow(path, steps)


def test_an_edit_is_told_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    path.write_text(good(0))
    seconds = []

    async def steps(following: Next) -> None:
        await following()
        for allowed in range(1, 8):
            began = time.monotonic()
            replace(path, good(allowed))
            await following()
            seconds.append(time.monotonic() - began)

    follow(path, steps)
    assert sorted(seconds)[1] < 0.1, seconds  # not the slowest: others may hold the machine for a moment


def test_edits_within_one_tick_of_the_file_systems_clock_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_launcher.hints.file._mark", lambda path: "as before")
    path = tmp_path / "hints.json"
    path.write_text(good(1))

    async def steps(following: Next) -> None:
        await following()
        path.write_text(good(2))
        assert await following() == HintRead(good(2).encode(), "0")

    follow(path, steps)


def test_a_file_may_be_absent_at_first_and_vanish_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "hints.json"

    async def steps(following: Next) -> None:
        assert await following() == HintRead(None)
        path.parent.mkdir()
        path.write_text(good(1))
        first = await following()
        path.unlink()
        assert await following() == HintRead(None)
        path.write_text(good(1))
        second = await following()
        assert first.text == second.text == good(1).encode()
        assert first.identity != second.identity

    follow(path, steps)


def test_a_file_that_is_half_written_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.hints.file.GRACE_SECONDS", PATIENCE)
    path = tmp_path / "hints.json"
    path.write_text(good(1))

    async def steps(following: Next) -> None:
        await following()
        half = asyncio.ensure_future(following())
        path.write_text(good(2)[:20])
        done, _ = await asyncio.wait([half], timeout=0.3)
        assert not done
        path.write_text(good(2))
        assert (await half).text == good(2).encode()

    follow(path, steps)


def test_a_file_that_stays_broken_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    path.write_text("{")

    async def steps(following: Next) -> None:
        assert await following() == HintRead(b"{", "0")
        path.touch()
        path.write_text("{{")
        assert await following() == HintRead(b"{{", "0")
        path.write_text(good(1))
        assert await following() == HintRead(good(1).encode(), "0")

    follow(path, steps)


def test_a_file_that_is_touched_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    path.write_text(good(1))

    async def steps(following: Next) -> None:
        await following()
        path.touch()
        replace(path, good(1))
        path.write_text(good(2))
        assert (await following()).text == good(2).encode()

    follow(path, steps)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "link to itself"])
def test_what_is_no_file_is_told_and_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "hints.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nothing" if kind == "link to nothing" else "hints.json")

    async def steps(following: Next) -> None:
        found = await following()
        assert found.text is None
        assert bool(found.error) == (kind != "link to nothing")
        if kind == "folder":
            path.rmdir()
        replace(path, good(1))
        assert (await following()).text == good(1).encode()

    follow(path, steps)


def test_a_mounted_link_that_is_swapped_is_followed(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hints.json").write_text(good(int(name)))
    (tmp_path / "data").symlink_to("1")

    async def steps(following: Next) -> None:
        assert (await following()).text == good(1).encode()
        (tmp_path / "new").symlink_to("2")
        os.replace(tmp_path / "new", tmp_path / "data")
        assert await following() == HintRead(good(2).encode(), "0")

    follow(tmp_path / "data" / "hints.json", steps)


def test_no_more_than_a_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    path.write_text(good(1) + " " * 2**21)

    async def steps(following: Next) -> None:
        found = await following()
        assert len(found.text or "") == 2**20 + 1

    follow(path, steps)


def test_a_source_ends_when_its_task_is_cancelled(tmp_path: Path) -> None:
    async def first(changes: AsyncIterator[HintRead], told: asyncio.Event) -> None:
        async for _ in changes:
            told.set()

    async def both() -> None:
        told = asyncio.Event()
        task = asyncio.create_task(first(FileSource(tmp_path / "hints.json").changes(), told))
        await asyncio.wait_for(told.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(both())
    assert len(os.listdir("/proc/self/fd")) == descriptors
