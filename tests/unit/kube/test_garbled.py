"""Answers that are none: whoever follows a collection goes on after them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, changes
from elastic_launcher.kube.login import Login
from tests.unit.kube.api_server import PATH, ApiServer

PATIENCE = 30.0


def test_a_watch_goes_on_after_something_that_is_no_event() -> None:
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
            server.garble()
            server.put("hints", {"a": "1"})
            change = await following
            assert isinstance(change, Change) and change.object["data"] == {"a": "1"}

    asyncio.run(steps())


@pytest.mark.parametrize("text", ["null", "[]", "<html>", ""])
def test_an_answer_that_is_no_object_is_none(text: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text)

    async def steps() -> None:
        application = web.Application()
        application.router.add_get(PATH, answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Api(Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "ml")) as api:
                with pytest.raises(ApiError) as refused:
                    await api.request("GET", PATH)
                assert refused.value.away
        finally:
            await runner.cleanup()

    asyncio.run(steps())
