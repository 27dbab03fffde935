"""An API server of any objects in memory: it lists, watches, makes and changes them, and refuses what is outdated.

The real one is in the cluster tests; this one is for what a whole cluster is too slow for. Selectors are those that the
controller uses: one label that has to exist, or an object's name; a selector of pods' phases is not looked at.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from elastic_launcher.kube.login import Login

_PATH = re.compile(
    r"(?P<root>/api/v1|/apis/[^/]+/v\w+)(/namespaces/(?P<space>[^/]+))?/(?P<kind>\w+)(/(?P<name>[^/]+))?"
)
Object = dict[str, Any]


class FakeCluster:
    """The objects of a cluster.

    Attributes:
        down: Whether every request is answered with 503.
        forbidden: Verbs and kinds that are refused, such as ``("list", "pods")``.
        unknown: Kinds that the server does not know, as if no CustomResourceDefinition were there.
        asked: The verbs and kinds of all requests that were not refused, in order.
        served: The versions of groups that it has, and says it has; of other groups it has any, and says nothing.
    """

    def __init__(self) -> None:
        self.down = False
        self.forbidden: set[tuple[str, str]] = set()
        self.unknown: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.served: dict[str, list[str]] = {}
        self._version = 0
        self._oldest = 0
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._news = asyncio.Condition()

    def get(self, kind: str, name: str, space: str = "") -> Object | None:
        """Returns an object, or None."""
        return self._objects.get(kind, {}).get((space, name))

    def all(self, kind: str) -> list[Object]:
        """Returns all objects of a kind."""
        return list(self._objects.get(kind, {}).values())

    async def put(self, kind: str, shown: Mapping[str, Any]) -> Object:
        """Makes an object, or changes it."""
        one: Object = json.loads(json.dumps(shown))
        metadata = one["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        known = self._objects.setdefault(kind, {})
        old = known.get(key)
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata["uid"] = old["metadata"]["uid"] if old else metadata.get("uid") or f"uid-{self._version}"
        known[key] = one
        await self._tell("MODIFIED" if old else "ADDED", kind, one)
        return one

    async def delete(self, kind: str, name: str, space: str = "") -> None:
        """Removes an object."""
        one = self._objects[kind].pop((space, name))
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        await self._tell("DELETED", kind, one)

    async def forget(self) -> None:
        """Ends all watches, and forgets what was before."""
        self._version += 1
        self._oldest = self._version
        async with self._news:
            self._news.notify_all()

    async def until(self, what: Any) -> Any:
        """Waits until a function returns something, and returns that; it is asked again after each change."""
        while not (found := what()):
            async with self._news:
                await self._news.wait()
        return found

    async def _tell(self, event: str, kind: str, one: Object) -> None:
        self._history.append((self._version, event, kind, json.loads(json.dumps(one))))
        async with self._news:
            self._news.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        group = request.path.removeprefix("/apis/")
        if group in self.served and not self.down:
            return web.json_response({"versions": [{"version": version} for version in self.served[group]]})
        match = _PATH.fullmatch(request.path)
        if self.down:
            return _status(503, "ServiceUnavailable")
        if match is None or match["kind"] in self.unknown or not self._serves(match["root"]):
            return _status(404, "NotFound")
        kind, space, name = match["kind"], match["space"] or "", match["name"]
        watches = request.query.get("watch") == "true"
        verb = {"GET": "get" if name else "watch" if watches else "list", "POST": "create", "PUT": "update"}
        asked = (verb.get(request.method, request.method.lower()), kind)
        if asked in self.forbidden:
            return _status(403, "Forbidden", f"may not {asked[0]} {asked[1]}")
        self.asked.append(asked)
        body = await request.json() if request.can_read_body else {}
        if kind == "selfsubjectaccessreviews":
            about = body["spec"]["resourceAttributes"]
            return web.json_response({"status": {"allowed": (about["verb"], about["resource"]) not in self.forbidden}})
        if request.method == "POST":
            return await self._create(kind, space, body)
        if name is None:
            chosen = _Chosen(kind, space, request.query)
            return await self._watch(request, chosen) if watches else self._list(chosen)
        return await self._one(request.method, kind, space, name, body)

    def _serves(self, root: str) -> bool:
        group, _, version = root.removeprefix("/apis/").rpartition("/")
        return version in self.served.get(group, [version])

    async def _create(self, kind: str, space: str, body: Object) -> web.Response:
        metadata = body["metadata"]
        name = metadata.setdefault("name", f"{metadata.get('generateName', '')}{self._version}")
        if self.get(kind, name, space) is not None:
            return _status(409, "AlreadyExists")
        return web.json_response(await self.put(kind, {**body, "metadata": {**metadata, "namespace": space}}))

    async def _one(self, method: str, kind: str, space: str, name: str, body: Object) -> web.Response:
        old = self.get(kind, name, space)
        if old is None:
            return _status(404, "NotFound")
        if method == "GET":
            return web.json_response(old)
        if (
            body["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
            != (old["metadata"]["resourceVersion"])
        ):
            return _status(409, "Conflict")
        return web.json_response(await self.put(kind, body if method == "PUT" else _merged(old, body)))

    def _list(self, chosen: _Chosen) -> web.Response:
        items = [one for one in self.all(chosen.kind) if chosen.has(one)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, chosen: _Chosen) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        place = 0
        while True:
            if seen < self._oldest:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            for version, event, kind, one in self._history[place:]:
                if version > seen and kind == chosen.kind and chosen.has(one):
                    await response.write(json.dumps({"type": event, "object": one}).encode() + b"\n")
            place = len(self._history)
            seen = max(seen, self._version)
            async with self._news:
                while len(self._history) == place and seen >= self._oldest:
                    await self._news.wait()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Login]:
        """Serves until the block ends; gives how to log in, to namespace ``quota``."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield Login(f"http://{host}:{port}", "quota")
        finally:
            await runner.cleanup()


class _Chosen:
    """The objects that a request means."""

    def __init__(self, kind: str, space: str, query: Mapping[str, str]) -> None:
        self.kind = kind
        self._space = space
        self._label = query.get("labelSelector", "")
        named = re.search(r"metadata\.name=([^,]+)", query.get("fieldSelector", ""))
        self._name = named[1] if named else ""

    def has(self, one: Object) -> bool:
        metadata = one["metadata"]
        return (
            self._space in ("", metadata.get("namespace", ""))
            and self._name in ("", metadata["name"])
            and (not self._label or self._label in (metadata.get("labels") or {}))
        )


def _merged(old: Any, change: Any) -> Any:
    """Returns an object after a merge patch."""
    if not isinstance(change, dict):
        return change
    kept = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _merged(kept.get(key), value)
    return kept


def _status(code: int, reason: str, message: str = "refused") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)
