"""Hints from a ConfigMap: every edit is told, whatever happens to the connection and to the object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from elastic_launcher.hints import HintRead
from elastic_launcher.hints.configmap import ConfigMapSource, hint_of
from elastic_launcher.hints.reference import Reference, parse_reference
from elastic_launcher.options import ConfigError
from tests.support.api_server import ApiServer
from tests.support.hint_documents import hint, text

PATIENCE = 30.0
Next = Callable[[], Awaitable[HintRead]]
Steps = Callable[[ApiServer, Next], Awaitable[None]]


def follow(steps: Steps, server: ApiServer | None = None) -> ApiServer:
    """Runs the steps of a test on what a source yields from a server."""
    served = server or ApiServer()

    async def both() -> None:
        async with served.serve() as login:
            source = ConfigMapSource(Reference("", "hints"), lambda: login)
            async with aclosing(source.changes()) as changes:

                async def following() -> HintRead:
                    return await asyncio.wait_for(anext(changes), PATIENCE)

                await steps(served, following)

    asyncio.run(both())
    return served


def good(allowed: int) -> str:
    return text(hint(allowed))


def data(allowed: int) -> dict[str, str]:
    return {"hints.json": good(allowed)}


def test_every_edit_is_told_over_one_watch() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(0))
        assert await following() == HintRead(good(0), "uid-1")
        for allowed in range(1, 500):
            server.put("hints", data(allowed))
        for allowed in range(1, 500):
            assert await following() == HintRead(good(allowed), "uid-1")

    assert [asked.partition(" ")[0] for asked in follow(steps).asked] == ["list", "watch"]


def test_the_edits_of_others_are_not_told() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        await following()
        server.put("other", data(7))
        server.put("hints", data(2))
        assert await following() == HintRead(good(2), "uid-1")

    follow(steps)


def test_one_that_is_not_there_is_told_and_so_is_its_coming_and_going() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        assert await following() == HintRead(None)
        server.put("hints", data(1))
        assert await following() == HintRead(good(1), "uid-1")
        server.delete("hints")
        assert await following() == HintRead(None)
        server.put("hints", data(1))
        assert await following() == HintRead(good(1), "uid-2")

    follow(steps)


def test_a_connection_that_is_cut_misses_nothing() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        await following()
        for allowed in range(2, 5):
            next_one = asyncio.ensure_future(following())
            await server.watched()
            server.cut()
            server.put("hints", data(allowed))
            assert await next_one == HintRead(good(allowed), "uid-1")

    assert follow(steps).asked.count("list") == 1


def test_a_bookmark_moves_the_place_where_a_watch_goes_on() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        await following()
        next_one = asyncio.ensure_future(following())
        await server.watched()
        server.bookmark()
        server.cut()
        server.put("hints", data(2))
        await next_one

    assert follow(steps).asked == ["list", "watch 1", "watch 2"]


def test_a_watch_that_has_expired_is_read_again() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        await following()
        next_one = asyncio.ensure_future(following())
        await server.watched()
        server.cut()
        server.delete("hints")
        server.put("hints", data(2))
        server.forget()
        assert await next_one == HintRead(good(2), "uid-2")

    assert follow(steps).asked == ["list", "watch 1", "watch 1", "list"]


def test_where_watching_is_forbidden_it_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.POLL_SECONDS", 0.05)
    server = ApiServer()
    server.forbidden = {"list", "watch"}

    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        assert await following() == HintRead(good(1), "uid-1")
        server.put("hints", data(2))
        assert await following() == HintRead(good(2), "uid-1")
        server.forbidden = set()
        next_one = asyncio.ensure_future(following())
        await server.watched()  # what was granted since is used
        server.delete("hints")
        assert await next_one == HintRead(None)

    follow(steps, server)


def test_where_nothing_is_permitted_it_says_what_to_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.follow.POLL_SECONDS", 0.05)
    server = ApiServer()
    server.forbidden = {"get", "list", "watch"}

    async def steps(server: ApiServer, following: Next) -> None:
        found = await following()
        assert found.text is None
        assert 'cannot get resource "configmaps"' in found.error
        assert "grant get, list and watch on ConfigMap hints" in found.error
        server.put("hints", data(1))
        server.forbidden = set()
        assert await following() == HintRead(good(1), "uid-1")

    follow(steps, server)


def test_a_server_that_is_away_is_told_once_and_missed_edits_are_caught_up() -> None:
    async def steps(server: ApiServer, following: Next) -> None:
        server.put("hints", data(1))
        await following()
        next_one = asyncio.ensure_future(following())
        await server.watched()
        server.down = True
        server.cut()
        server.put("hints", data(2))
        found = await next_one
        assert found == HintRead(None, error="it can't be read: the server is not ready")
        server.down = False
        assert await following() == HintRead(good(2), "uid-1")

    follow(steps)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, HintRead(None)),
        ({"data": {"hints.json": "{"}}, HintRead("{", "u")),
        ({"data": {"default": "1:4"}}, HintRead(json.dumps({"default": "1:4"}), "u")),
        (
            {"binaryData": {"hints.json": "e30="}},
            HintRead(None, "u", "its key hints.json is under binaryData; it must be a text, under data"),
        ),
        ({}, HintRead(None, "u", "it has no key hints.json")),
        ({"data": {"hint.json": "{}", "a": "1"}}, HintRead(None, "u", "it has no key hints.json, but a, hint.json")),
    ],
)
def test_what_a_configmap_holds(found: dict[str, object] | None, expected: HintRead) -> None:
    assert hint_of(None if found is None else {"metadata": {"uid": "u"}, **found}) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("configmap/gpu-hints", Reference("", "gpu-hints")),
        ("configmap/quota/gpu-hints", Reference("quota", "gpu-hints")),
        ("hints.json", None),
        ("/configmap/hints", None),
    ],
)
def test_what_a_reference_names(given: str, expected: Reference | None) -> None:
    assert parse_reference(given) == expected


@pytest.mark.parametrize("given", ["configmap/", "configmap//x", "configmap/a/b/c", "configmap/Hints", "configmap/a/"])
def test_a_reference_to_nothing_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="configmap/NAMESPACE/NAME"):
        parse_reference(given)


def test_a_source_is_called_by_its_reference() -> None:
    assert ConfigMapSource(Reference("quota", "gpu-hints")).name == "ConfigMap quota/gpu-hints"
    own = ConfigMapSource(Reference("", "gpu-hints"))
    assert own.name == "ConfigMap gpu-hints in the launcher's own namespace", "whoever forgot the namespace sees it"
