"""An API server over one open session: requests, and watches that end at once when they are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp

from elastic_launcher.kube.login import Login

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 15.0
"""A request that a busy API server has queued is answered, or refused, within that."""
WATCH_SECONDS = 30
"""A watch is renewed after so long, to see what a silently broken connection would hide."""
QUIET_SECONDS = WATCH_SECONDS + 5.0
UNAUTHORIZED = 401
MERGE = "application/merge-patch+json"
PAUSES = (0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds between tries, at most: a request is given up after some 6 s."""
LONG_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""The same for a launcher that starts: its API server may just be restarted."""
LONGEST_ASKED = 30.0
"""Seconds that a server is left alone for at most: a page of maintenance asks for an hour, and may be gone at once."""
MOST_SHOWN = 200
"""Characters of an answer that is none of the API's."""
NOT_FOUND, CONFLICT = 404, 409
NOT_YET, BUSY, SERVER_FAILED = 403, 429, 500

Answer = TypeVar("Answer")


class ApiError(OSError):
    """A refusal of the API server, or the reason why it could not be asked.

    Attributes:
        status: The answer's; 0 when there was none.
        reason: The API's word for it: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Forbidden``.
        retry_after: Seconds that the server asks to wait, as far as it is heeded.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = min(retry_after, LONGEST_ASKED)

    @property
    def unsure(self) -> bool:
        """Whether what was asked for may have been done all the same."""
        return self.status == 0 or self.status >= SERVER_FAILED

    @property
    def away(self) -> bool:
        """Whether the server says nothing about what was asked for: it can't be reached, fails, or is busy.

        Nor does it where it takes no credentials, as while it starts, or while what judges them is away.
        """
        return self.unsure or self.status in (UNAUTHORIZED, BUSY)


class Api:
    """Speaks with one API server; used inside ``async with``."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Returns the server's answer.

        Raises:
            ApiError: If it refuses, or can't be reached.
        """
        async with self._answer(method, path, body, query, content_type, ANSWER_SECONDS) as answer:
            found = await answer.json(content_type=None)
            if not isinstance(found, dict):
                raise ValueError(f"it answers {str(found)[:MOST_SHOWN]!r}")
            return found

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yields what the server sends, piece by piece, until it ends.

        Raises:
            ApiError: If it refuses, or can't be reached.
        """
        async with self._answer("GET", path, None, query, "", None) as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    async def watch(self, path: str, version: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields each change of a collection after a version, bookmarks among them, until the server ends it.

        Raises:
            ApiError: If the server refuses, the version is too old for it, or the connection is lost.
        """
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._answer("GET", path, None, {**query, **asked}, "", QUIET_SECONDS) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    match json.loads(line):
                        case {"type": "ERROR", "object": {"code": int(code)} as status}:
                            raise _refusal(status, code)
                        case {"type": str(), "object": {"metadata": {"resourceVersion": str()}}} as event:
                            yield event
                        case _:
                            raise ValueError(f"it answers {line[:MOST_SHOWN]!r}")

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str,
        quiet: float | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        headers = {"Accept": "application/json"}
        try:
            authorization = await self._proof()
            headers |= {"Authorization": authorization} if authorization else {}
            headers |= {"Content-Type": content_type} if body is not None else {}
            async with self._session.request(
                method,
                self.login.server + path,
                data=None if body is None else json.dumps(body),
                params=query,
                headers=headers,
                ssl=self.login.tls if self.login.tls is not None else True,
                server_hostname=self.login.tls_server_name,
                proxy=self.login.proxy,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=quiet),
            ) as answer:
                if answer.status >= 400:
                    raise _refusal(await _document(answer), answer.status, answer.headers.get("Retry-After", ""))
                yield answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            # what lies below names no object of the library's
            cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
            why = str(cause) or type(cause).__name__
            raise ApiError(0, "Unreachable", f"the API server {self.login.server} can't be reached: {why}") from error

    async def _proof(self) -> str:
        """Returns what a request proves itself with: a program may be run for it, or a file read that is kept fresh."""
        try:
            return await asyncio.to_thread(self.login.authorization)
        except Exception as error:  # noqa: BLE001 - the client library lets through what programs and files give
            why = " ".join(str(error).split()) or type(error).__name__
            raise ApiError(0, "NoProof", f"no credentials for the API server {self.login.server}: {why}") from error


async def find(api: Api, path: str) -> dict[str, Any] | None:
    """Returns an object; None if there is none.

    Raises:
        ApiError: If the server refuses to show it, or can't be reached.
    """
    try:
        return await api.request("GET", path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


async def insist(call: Callable[[], Awaitable[Answer]], pauses: Sequence[float] = PAUSES) -> Answer:
    """Returns what the server answers; it is asked again where it is away, or new and knows no roles yet.

    ``pauses`` are the seconds between tries, at most.

    Raises:
        ApiError: If it refuses, or the tries are over.
    """
    for pause in pauses:
        try:
            return await call()
        except ApiError as error:
            if not error.away and error.status != NOT_YET:
                raise
            await asyncio.sleep(max(pause * random.uniform(0.5, 1.0), error.retry_after))
    return await call()


def items_of(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the objects of a list that the API server has answered with.

    Raises:
        ApiError: If it is none.
    """
    match found:
        case {"items": [*items]}:
            return items
        case {"items": None}:
            return []
    raise ApiError(0, "NoList", f"no list came, but {str(found)[:MOST_SHOWN]!r}")


async def _document(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await answer.text(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": f"{answer.status} {answer.reason}: {text[:MOST_SHOWN]}"}


def _refusal(status: Mapping[str, Any], code: int, retry_after: str = "") -> ApiError:
    """Returns the error of a Status of the API."""
    message = status.get("message", f"refused with {code}")
    if code == UNAUTHORIZED:
        message = f"the API server does not take these credentials ({message}): log in again, or mend the kubeconfig"
    return ApiError(code, status.get("reason", ""), message, _seconds(status, retry_after))


def _seconds(status: Mapping[str, Any], retry_after: str) -> float:
    """Returns how long a server asks to wait; what it says that is no number, such as a date, counts as nothing."""
    match status:
        case _ if retry_after.isdecimal():
            return float(retry_after)
        case {"details": {"retryAfterSeconds": int(seconds)}}:
            return float(seconds)
    return 0.0
