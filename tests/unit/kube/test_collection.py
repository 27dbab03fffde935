"""Answers that are none: whoever follows a collection goes on after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes
from elastic_launcher.kube.login import Login
from tests.support.api_server import PATH, ApiServer

PATIENCE = 30.0


@pytest.mark.parametrize(
    "line",
    [b'{"kind": "Status", "code": 502}', b'{"type": "ERROR", "object": {"code": null}}', b"[]", b"<html>"],
)
def test_a_watch_goes_on_after_something_that_is_no_event(line: bytes) -> None:
    async def steps() -> None:
        server = ApiServer()
        collection = Collection(PATH, name="hints")
        async with (
            asyncio.timeout(PATIENCE),
            server.serve() as login,
            Api(login) as api,
            aclosing(changes(api, collection)) as found,
        ):
            assert isinstance(await anext(found), Snapshot)
            following = asyncio.ensure_future(anext(found))
            await server.watched()
            server.garble(line)
            server.put("hints", {"a": "1"})
            change = await following
            assert isinstance(change, Change) and change.object["data"] == {"a": "1"}

    asyncio.run(steps())


@asynccontextmanager
async def answering(status: int, text: str) -> AsyncIterator[Login]:
    """Serves a collection that is always answered for like this."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    application = web.Application()
    application.router.add_get(PATH, answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "ml")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("text", ["null", "[]", "<html>", ""])
def test_an_answer_that_is_no_object_is_none(text: str) -> None:
    async def steps() -> None:
        async with answering(200, text) as login, Api(login) as api:
            with pytest.raises(ApiError) as refused:
                await api.request("GET", PATH)
            assert refused.value.away

    asyncio.run(steps())


@pytest.mark.parametrize("text", ["{}", '{"metadata": null}', '{"items": [], "metadata": {"resourceVersion": 7}}'])
def test_an_object_that_is_no_list_is_trouble_and_asked_for_again(text: str) -> None:
    async def steps() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            answering(200, text) as login,
            Api(login) as api,
            aclosing(changes(api, Collection(PATH))) as found,
        ):
            trouble = await anext(found)
            assert isinstance(trouble, Trouble) and "no list came" in str(trouble.error)

    asyncio.run(steps())


@pytest.mark.parametrize("details", ['{"retryAfterSeconds": "soon"}', '"soon"', '{"retryAfterSeconds": null}'])
def test_a_refusal_with_odd_details_is_that_refusal(details: str) -> None:
    async def steps() -> None:
        async with answering(429, f'{{"message": "busy", "details": {details}}}') as login, Api(login) as api:
            with pytest.raises(ApiError, match="busy") as refused:
                await api.request("GET", PATH)
            assert (refused.value.status, refused.value.retry_after) == (429, 0.0)

    asyncio.run(steps())


@pytest.mark.parametrize("error", [OSError("no such file"), ValueError("no token in it")])
def test_credentials_that_can_not_be_had_are_an_api_that_is_away(error: Exception) -> None:
    def fail() -> str:
        raise error

    async def steps() -> None:
        async with Api(Login("http://127.0.0.1:9", "ml", authorization=fail)) as api:
            with pytest.raises(ApiError, match=f"no credentials for the API server http://127.0.0.1:9: {error}") as no:
                await api.request("GET", PATH)
            assert no.value.away

    asyncio.run(steps())
