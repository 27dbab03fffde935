"""An API server that fails as asked: one collection, with all that a watch can meet.

The real one is in the cluster tests; this one loses connections, forgets versions and forbids at a named moment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from elastic_launcher.kube.login import Login

PATH = "/api/v1/namespaces/ml/configmaps"


class ApiServer:
    """Serves the ConfigMaps of a namespace.

    Attributes:
        forbidden: Verbs that are refused: get, list, watch.
        oldest: Versions before it are forgotten.
        down: Whether every request is answered with 503.
        asked: The verbs of all requests, in order, watches with their version.
    """

    def __init__(self) -> None:
        self.forbidden: set[str] = set()
        self.oldest = 0
        self.down = False
        self.asked: list[str] = []
        self._version = 0
        self._uids = 0
        self._objects: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._watches: dict[asyncio.Queue[bytes | None], str] = {}

    def put(self, name: str, data: dict[str, str]) -> None:
        """Makes or changes an object."""
        old = self._objects.get(name)
        self._uids += old is None
        uid = old["metadata"]["uid"] if old else f"uid-{self._uids}"
        self._version += 1
        self._objects[name] = {
            "metadata": {"name": name, "uid": uid, "resourceVersion": str(self._version)},
            "data": data,
        }
        self._tell("MODIFIED" if old else "ADDED", self._objects[name])

    def delete(self, name: str) -> None:
        """Removes an object."""
        self._version += 1
        gone = self._objects.pop(name)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", gone)

    def bookmark(self) -> None:
        """Tells the watches how far they have come."""
        self._version += 1
        mark = {"kind": "ConfigMap", "metadata": {"resourceVersion": str(self._version)}}
        self._tell("BOOKMARK", mark, kept=False)

    def forget(self) -> None:
        """Compacts the history: whoever asks for what was before is told that it is gone."""
        self.oldest = self._version + 1
        self._history.clear()

    def cut(self) -> None:
        """Ends all watches in the midst of a line."""
        for queue in self._watches:
            queue.put_nowait(b'{"type": "MODI')
            queue.put_nowait(None)

    def garble(self, line: bytes) -> None:
        """Tells the watches something that is no event, as what stands between may."""
        for queue in self._watches:
            queue.put_nowait(line + b"\n")

    async def watched(self) -> None:
        """Waits until somebody watches."""
        while not self._watches:
            await asyncio.sleep(0.01)

    def _tell(self, kind: str, found: dict[str, Any], kept: bool = True) -> None:
        event = {"type": kind, "object": json.loads(json.dumps(found))}
        if kept:
            self._history.append((self._version, event))
        for queue, name in self._watches.items():
            if kind == "BOOKMARK" or found["metadata"]["name"] == name:
                queue.put_nowait(json.dumps(event).encode() + b"\n")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refuse("get"):
            return refusal
        found = self._objects.get(request.match_info["name"])
        return web.json_response(found) if found else _status(404, "NotFound", "it is not found")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        if request.query.get("watch") == "true":
            return await self._watch(request, name)
        if refusal := self._refuse("list"):
            return refusal
        items = [self._objects[name]] if name in self._objects else []
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, name: str) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if refusal := self._refuse(f"watch {version}"):
            return refusal
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if version < self.oldest:  # a real server says it so, after a good beginning
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for number, event in self._history:
            if number > version and event["object"]["metadata"]["name"] == name:
                queue.put_nowait(json.dumps(event).encode() + b"\n")
        self._watches[queue] = name
        try:
            while (line := await queue.get()) is not None:
                await response.write(line[:9])
                await response.write(line[9:])  # a line comes in pieces
            if request.transport is not None:
                request.transport.abort()
        finally:
            del self._watches[queue]
        return response

    def _refuse(self, asked: str) -> web.Response | None:
        self.asked.append(asked)
        verb = asked.partition(" ")[0]
        if self.down:
            return _status(503, "ServiceUnavailable", "the server is not ready")
        if verb in self.forbidden:
            return _status(403, "Forbidden", f'configmaps "hints" is forbidden: cannot {verb} resource "configmaps"')
        return None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Login]:
        """Serves until the block ends; gives how to log in."""
        app = web.Application()
        app.add_routes([web.get(PATH, self._list), web.get(PATH + "/{name}", self._get)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield Login(f"http://{host}:{port}", "ml")
        finally:
            self.cut()
            await runner.cleanup()


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)
