"""An API server over one open session: requests, and watches that end at once when they are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import aiohttp

from elastic_launcher.kube.login import Login

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 15.0
"""A request that a busy API server has queued is answered, or refused, within that."""
WATCH_SECONDS = 30
"""A watch is begun anew after so long: what a connection that died in silence would hide is seen by then."""
QUIET_SECONDS = WATCH_SECONDS + 5.0
UNAUTHORIZED = 401
MERGE = "application/merge-patch+json"


class ApiError(OSError):
    """What the API server refused, or why it could not be asked.

    Attributes:
        status: The answer's; 0 when there was none.
        reason: The API's word for it: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Forbidden``.
        retry_after: Seconds that the server asks to wait.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class Api:
    """Speaks with one API server; used inside ``async with``.

    Args:
        login: Which, and as whom.
    """

    def __init__(self, login: Login) -> None:
        self.login = login
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            found: dict[str, Any] = await answer.json(content_type=None)
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
                    event: dict[str, Any] = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"], int(event["object"].get("code", 0)))
                    yield event

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
            # may run a program, or read a file that the cluster keeps fresh
            authorization = await asyncio.to_thread(self.login.authorization)
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


async def _document(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await answer.text(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": f"{answer.status} {answer.reason}: {text[:200]}"}


def _refusal(status: Mapping[str, Any], code: int, retry_after: str = "") -> ApiError:
    """Returns the error that a Status of the API stands for."""
    seconds = retry_after if retry_after.isdecimal() else (status.get("details") or {}).get("retryAfterSeconds", 0)
    message = status.get("message", f"refused with {code}")
    if code == UNAUTHORIZED:
        message = f"the API server does not take these credentials ({message}): log in again, or mend the kubeconfig"
    return ApiError(code, status.get("reason", ""), message, float(seconds))
