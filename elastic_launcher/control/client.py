"""The client of the control API, for members, node agents and the command line.

It is light to import, since every rank and agent carries it. All requests are harmless to repeat (reports carry a
number by which the coordinator drops what it has seen): each is retried, a bounded number of times within its time-out.
Only what the job's key has signed is an answer: anything else that listens at the address, or is on the way to it (a
load balancer, a proxy, another job), leaves the coordinator *not reached*.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from elastic_launcher.control.auth import (
    ANSWER_HEADER,
    LARGEST_BODY,
    SIGNATURE_HEADER,
    answers,
    channel_of,
    signed_headers,
)
from elastic_launcher.control.messages import decode, encode
from elastic_launcher.control.requests import Refused

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from msgspec import Struct

RETRY_PAUSES = (0.0, 0.05, 0.2, 0.5)
"""Seconds before each retry, jittered: the first comes at once, since the server may have closed a kept connection."""

MOST_QUOTED = 120
"""Characters of an unsigned answer that are shown."""


class ControlUnreachable(OSError):
    """The coordinator could not be reached, or did not answer in time."""


class NotTheCoordinator(ControlUnreachable):
    """Something answered in the coordinator's place: nothing that holds the job's key."""


class ControlRefused(RuntimeError):
    """The coordinator refused a request.

    Attributes:
        status: The HTTP status of its answer.
        term: The coordinator's, where the request was one of another term; else None.
    """

    def __init__(self, status: int, message: str, term: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.term = term


class _Channel:
    """One kept connection: a long poll on one never holds up a report on another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: HTTPConnection | None = None
        self.key = b""
        self.last_counter = 0

    def next_counter(self) -> int:
        """Returns a number above all that this sender, in this process or one before, has used on the channel."""
        self.last_counter = max(self.last_counter + 1, time.time_ns())
        return self.last_counter

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class ControlClient:
    """Asks the coordinator, signed by the job's key.

    Safe to use from several threads; requests to the same path wait for each other, all others don't.

    Args:
        control: Path of the job's ``control.json``, read again at each reconnect, or the coordinator's URL.
        sender: Who asks: ``m2`` is member 2, ``n1`` the agent of node 1, ``cli`` the command line.
        key: The job's key in hexadecimal digits; needed with a URL, read from the file otherwise.
    """

    def __init__(self, control: str, sender: str, key: str | None = None) -> None:
        if control.startswith("http://") and not key:
            raise ValueError("a coordinator's URL needs the job's key beside it")
        self._control = control
        self._sender = sender
        self._key = key
        self._channels: dict[str, _Channel] = {}
        self._channels_lock = threading.Lock()
        self._strangers: set[str] = set()
        self._closed = False

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def get(self, path: str, timeout: float = 5.0) -> dict[str, Any]:
        """Returns the answer to a GET of ``path`` (with its query), such as ``/v1/members/2/orders?after=0&wait=2``.

        Args:
            path: The path.
            timeout: Seconds that the whole call may take, retries included: above ``wait`` for a long poll.

        Raises:
            ControlUnreachable: If no answer came in time.
            ControlRefused: If the coordinator refused.
        """
        return self._ask("GET", path, b"", timeout)

    def post(self, path: str, payload: Struct | dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """Returns the answer to a POST of ``payload``.

        Raises:
            ControlUnreachable: If no answer came in time.
            ControlRefused: If the coordinator refused; with status 413, without asking it, where it takes no such size.
        """
        body = json.dumps(encode(payload), separators=(",", ":")).encode()
        if len(body) >= LARGEST_BODY:  # the coordinator can't sign an answer to what it does not read
            raise ControlRefused(413, f"{path} has {len(body)} bytes, and must have fewer than {LARGEST_BODY}")
        return self._ask("POST", path, body, timeout)

    def close(self) -> None:
        """Closes all connections; a request under way in another thread ends with ``ControlUnreachable``."""
        self._closed = True
        self.hang_up()

    def hang_up(self) -> None:
        """Ends all connections, so that the next request goes to the coordinator's address at that time."""
        with self._channels_lock:
            channels = list(self._channels.values())
        for channel in channels:
            connection = channel.connection
            if connection is not None and connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(2)  # both ways: wakes a thread that reads
            if channel.lock.acquire(blocking=False):
                channel.drop()
                channel.lock.release()

    def _ask(self, method: str, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        with self._channels_lock:
            channel = self._channels.setdefault(channel_of(path), _Channel())
        deadline = time.monotonic() + timeout
        with channel.lock:
            problem: Exception = ControlUnreachable("closed")
            for pause in (None, *RETRY_PAUSES):
                if self._closed:
                    raise ControlUnreachable("this client is closed")
                if pause and not _rest(pause, deadline):
                    break
                try:
                    status, answer = self._attempt(channel, method, path, body, deadline)
                except _network_errors() as error:
                    channel.drop()
                    problem = error
                    if isinstance(error, NotTheCoordinator):
                        self._tell(error)
                    if time.monotonic() >= deadline:
                        break
                    continue
                if status < 400:
                    return answer
                refused = decode(answer, Refused, "a refusal")
                message = refused.error or f"HTTP status {status}"
                if status >= 500:
                    problem = ControlUnreachable(message)
                elif isinstance(refused.used, int):
                    channel.last_counter = max(channel.last_counter, refused.used)  # by a sender whose clock was ahead
                    problem = ControlRefused(status, message)
                else:
                    raise ControlRefused(status, message, refused.term)
        if isinstance(problem, ControlRefused):
            raise problem
        raise ControlUnreachable(f"{method} {path}: the coordinator ({self._control}) gave no answer: {problem}")

    def _attempt(
        self, channel: _Channel, method: str, path: str, body: bytes, deadline: float
    ) -> tuple[int, dict[str, Any]]:
        remaining = max(deadline - time.monotonic(), 0.001)
        connection = channel.connection
        if connection is None:
            connection = channel.connection = self._connect(channel, remaining)
        elif connection.sock is not None:
            connection.sock.settimeout(remaining)
        headers = signed_headers(channel.key, method, path, body, self._sender, channel.next_counter())
        signature = headers[SIGNATURE_HEADER]
        connection.request(method, path, body or None, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        if not answers(channel.key, signature, response.status, text, response.headers.get(ANSWER_HEADER, "")):
            said = " ".join(text.decode(errors="replace").split())[:MOST_QUOTED]
            raise NotTheCoordinator(
                f"HTTP {response.status} from {connection.host}:{connection.port} is no answer of this job's "
                f"coordinator, whose key has not signed it: {said or '(nothing)'}"
            )
        answer = json.loads(text) if text else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        return response.status, answer

    def _tell(self, error: NotTheCoordinator) -> None:
        """Writes into the log who answers in the coordinator's place, once."""
        if (line := str(error)) not in self._strangers:
            self._strangers.add(line)
            with contextlib.suppress(OSError):
                print(f"elastic-launcher: {line}; the coordinator is tried again", file=sys.stderr, flush=True)

    def _connect(self, channel: _Channel, timeout: float) -> HTTPConnection:
        from http.client import HTTPConnection  # 15 ms, paid where the first request is

        url, key = self._control, self._key
        if not url.startswith("http://"):
            with open(self._control, encoding="utf-8") as file:
                control = json.load(file)
            if not isinstance(control, dict):
                raise ValueError("it does not hold an object")
            url, key = str(control["url"]), str(control["key"])
        channel.key = bytes.fromhex(key or "")
        # the coordinator's own address, without the environment's proxies
        connection = HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=timeout)
        connection.connect()  # sets TCP_NODELAY
        return connection


def _rest(pause: float, deadline: float) -> bool:
    """Waits a jittered pause; returns false, at once, where it does not fit before the deadline."""
    import random

    pause *= random.uniform(0.5, 1.5)
    if time.monotonic() + pause >= deadline:
        return False
    time.sleep(pause)
    return True


def _network_errors() -> tuple[type[Exception], ...]:
    from http.client import HTTPException

    return (OSError, HTTPException, ValueError, KeyError)  # the last two: control.json or an answer cut short
