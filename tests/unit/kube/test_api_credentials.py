"""Credentials that the API server does not take: said as that, and not by its one word."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import Login


def test_credentials_that_are_not_taken_are_said_with_what_to_do() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"message": "Unauthorized", "reason": "Unauthorized", "code": 401}, status=401)

    async def steps() -> None:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", refuse)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Api(Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "ml")) as api:
                await api.request("GET", "/version")
        finally:
            await runner.cleanup()

    with pytest.raises(ApiError, match=r"does not take these credentials \(Unauthorized\): log in again") as refused:
        asyncio.run(steps())
    assert (refused.value.status, refused.value.reason) == (401, "Unauthorized")
