"""The HTTP server of the control API: verifies signed requests, and delivers orders within milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from msgspec import UNSET

from elastic_launcher.control import requests
from elastic_launcher.control.auth import (
    ANSWER_HEADER,
    LARGEST_BODY,
    SENDER_HEADER,
    SIGNATURE_HEADER,
    Refusal,
    Verifier,
)
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Order, Report, decode, encode
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.api.handlers import JobHandlers
from elastic_launcher.coordinator.api.rejoin import NotYetError, Rejoin
from elastic_launcher.coordinator.runtime.endpoints import HERE, Endpoint
from elastic_launcher.coordinator.runtime.node_files import NodeFiles

LONGEST_WAIT = 30.0  # seconds that a request for orders may ask to be kept waiting
CLOSE_SECONDS = 0.5  # that requests under way get to end when the server closes
REMEMBERED_REPORTS = 4096  # a member's numbers of reports, by which a repeated one is recognized

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _OtherTermError(Exception):
    """A member follows another coordinator than this one."""


class _Mailbox:
    """The orders to one member, as JSON, kept for as long as the server lives."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self._arrived = asyncio.Event()

    def put(self, order: str) -> None:
        self.orders.append(order)
        self.wake()

    def wake(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def after(self, seq: int, wait: float) -> str:
        """Returns the orders after ``seq``, with their numbers, as a JSON list; waits for one where there is none."""
        if len(self.orders) <= seq and wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._arrived.wait()
        found = enumerate(self.orders[max(seq, 0) :], max(seq, 0) + 1)
        return "[" + ", ".join(f'{{"seq": {number}, {order[1:]}' for number, order in found) + "]"


class _Seen:
    """Which of a member's reports were taken before."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def take(self, number: int) -> bool:
        """Returns whether a number is new."""
        if number in self._numbers:
            return False
        self._numbers[number] = None
        if len(self._numbers) > REMEMBERED_REPORTS:
            del self._numbers[next(iter(self._numbers))]
        return True


class ControlServer:
    """Serves one job's control API.

    Args:
        handlers: Takes the requests; another may take its place.
        files: Of nodes that see none of this machine's; None where there are no such nodes.
        refused: Takes requests that can't come from the job: address, request, claimed sender, error.
    """

    def __init__(
        self,
        key: bytes,
        handlers: JobHandlers | Rejoin,
        term: int = 1,
        where: Endpoint = HERE,
        files: NodeFiles | None = None,
        refused: Callable[[str, str, str, str], None] = lambda *request: None,
    ) -> None:
        self._where = where
        self._files = files
        self._refused = refused
        self._verifier = Verifier(key, after=time.time_ns())  # senders start at their own clock
        self.handlers: JobHandlers | Rejoin = handlers
        self._term = term
        self._mailboxes: defaultdict[int, _Mailbox] = defaultdict(_Mailbox)
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)
        self._runner: web.AppRunner | None = None
        self._closing = False

    async def start(self) -> str:
        """Starts to listen, and returns the URL."""
        application = web.Application(middlewares=[self._guard], client_max_size=LARGEST_BODY)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/join", self._join)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/introduce", self._introduce)
        application.router.add_get(r"/v1/members/{member:\d{1,9}}/orders", self._orders)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/reports", self._reports)
        for kind, handler in self._node_handlers().items():
            application.router.add_post(
                rf"/v1/nodes/{{node:\d{{1,9}}}}/{kind.path()}", partial(self._node_message, kind, handler)
            )
        if self._files is not None:
            application.router.add_get(r"/v1/nodes/{node:\d{1,9}}/job", self._job)
        application.router.add_get("/v1/status", self._status)
        application.router.add_post("/v1/save", self._save)
        application.router.add_post("/v1/stop", self._stop)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._where.bind, self._where.control_port, reuse_address=True)
        await site.start()
        return f"http://{self._where.advertised}:{self._runner.addresses[0][1]}"

    def order(self, members: Iterable[int], order: Order) -> None:
        """Puts an order where the members' waiting requests find it at once."""
        text = json.dumps(encode(order))  # once for all of them: a formation names each of its members
        for member in members:
            self._mailboxes[member].put(text)

    async def close(self) -> None:
        """Answers what still waits, and stops to listen."""
        self._closing = True
        for mailbox in self._mailboxes.values():
            mailbox.wake()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Lets nobody in who can't sign, and turns what is wrong with a request into its status and one sentence.

        Whoever has proved the job's key gets an answer that does so too.
        """
        try:
            body = await request.read()
        except ConnectionError as error:  # who asked was killed: that is noticed elsewhere, and nobody gets an answer
            logger.debug("%s %s was cut off: %s", request.method, request.path, error)
            return web.Response(status=400)
        try:
            sender = self._verifier.verify(request.method, request.raw_path, request.headers, body)
            for kind, letter in (("member", "m"), ("node", "n")):
                if kind in request.match_info and sender != letter + request.match_info[kind]:
                    raise Refusal(403, f"{sender} can't speak for {kind} {request.match_info[kind]}")
            return self._signed(request, await handler(request))
        except Refusal as refusal:
            if refusal.odd:
                what = f"{request.method} {request.path}"
                self._refused(str(request.remote), what, request.headers.get(SENDER_HEADER, ""), str(refusal))
            answer = _json(requests.Refused(str(refusal), refusal.used), refusal.status)
            return self._signed(request, answer) if refusal.proven else answer
        except _OtherTermError as error:
            refused, status = requests.Refused(str(error), term=self._term), 409
        except NotYetError as error:
            refused, status = requests.Refused(str(error)), 503
        except web.HTTPException as error:
            refused, status = requests.Refused(error.reason), error.status
        except LookupError as error:
            refused, status = requests.Refused(str(error.args[0] if error.args else error)), 404
        except (ValueError, TypeError) as error:
            refused, status = requests.Refused(str(error)), 400
        except Exception as error:
            logger.exception("%s %s can't be answered", request.method, request.path)
            refused, status = requests.Refused(f"{type(error).__name__}: {error}"), 500
        return self._signed(request, _json(refused, status))

    def _signed(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Returns an answer with the proof that it is this coordinator's, and to this request."""
        assert isinstance(answer, web.Response) and isinstance(answer.body, bytes)
        asked = request.headers.get(SIGNATURE_HEADER, "")
        answer.headers[ANSWER_HEADER] = self._verifier.sign_answer(asked, answer.status, answer.body)
        return answer

    async def _join(self, request: web.Request) -> web.Response:
        return _json(self.handlers.join(_member(request), await _content(request, requests.Join)))

    async def _introduce(self, request: web.Request) -> web.Response:
        return _json(self.handlers.introduce(_member(request), await _content(request, Introduction)))

    def _check_term(self, term: int | None) -> None:
        """Refuses who believes in another coordinator, so that it looks for the right one and introduces itself."""
        if term not in (None, self._term):
            raise _OtherTermError(f"this is the coordinator of term {self._term}, not of term {term}")

    async def _orders(self, request: web.Request) -> web.Response:
        member, query = _member(request), dict(request.query)
        asked = decode(query, requests.Poll, "the query", texts=True)
        self._check_term(asked.term)
        self.handlers.hear(member, decode(query, Vitals, "the query", texts=True))
        wait = 0.0 if self._closing else max(0.0, min(asked.wait, LONGEST_WAIT))
        orders = await self._mailboxes[member].after(asked.after, wait)
        text = f'{{"orders": {orders}, "term": {self._term}}}'
        return web.Response(text=text, content_type="application/json")

    async def _reports(self, request: web.Request) -> web.Response:
        member, told = _member(request), await _content(request, requests.Reports)
        self._check_term(told.term)
        self.handlers.hear(member)
        reports = [decode(one, Report, f"report {one.get('kind', '')}") for one in told.reports]
        for number, report in zip((one.get("n") for one in told.reports), reports, strict=True):
            if not isinstance(number, int) or self._seen[member].take(number):
                self.handlers.report(member, report)
        return _json({})

    def _node_handlers(self) -> Mapping[type[requests.NodeMessage], Callable[[int, Any], Awaitable[object]]]:
        """Returns what answers each of an agent's messages."""
        handlers: dict[type[requests.NodeMessage], Callable[[int, Any], Awaitable[object]]] = {
            requests.Heartbeat: self._heartbeat,
            requests.Life: self._tell,
            requests.Notice: self._tell,
            requests.RankEnded: self._rank_ended,
        }
        if self._files is not None:
            handlers |= {requests.Log: self._log, requests.Sample: self._sample, requests.Unfit: self._tell}
        return handlers

    async def _node_message(
        self, kind: type[requests.NodeMessage], handler: Callable[[int, Any], Awaitable[object]], request: web.Request
    ) -> web.Response:
        """Answers what an agent says; refuses one of a pod that the node's queue has taken back."""
        node, message = _node(request), await _content(request, kind)
        if message.first_member is not UNSET and self.handlers.is_superseded(node, message.first_member):
            if kind is requests.Heartbeat:
                return _json(requests.HeartbeatAnswer(leave=True))
            raise LookupError(f"this pod of node {node} is not wanted any more")
        return _json(await handler(node, message))

    async def _heartbeat(self, node: int, told: requests.Heartbeat) -> requests.HeartbeatAnswer:
        return self.handlers.heartbeat(node, told)

    async def _tell(self, node: int, message: requests.NodeMessage) -> Mapping[str, object]:
        self.handlers.take(node, message)
        return {}

    async def _rank_ended(self, node: int, ended: requests.RankEnded) -> Mapping[str, object]:
        if self._files is not None:
            first_member = ended.first_member or None
            self._files.note_exit(node, ended.local_rank, ended.exit_code, ended.signal, first_member)
        return await self._tell(node, ended)

    async def _log(self, node: int, piece: requests.Log) -> Mapping[str, object]:
        assert self._files is not None
        self._files.add_to_log(node, piece.local_rank, piece.offset, piece.data)
        return {}

    async def _sample(self, node: int, sample: requests.Sample) -> requests.SampleAnswer:
        assert self._files is not None
        return requests.SampleAnswer(await asyncio.to_thread(self._files.judge, node, sample.name))

    async def _job(self, request: web.Request) -> web.Response:
        assert self._files is not None
        node = _node(request)
        first = self.handlers.register(node, request.query.get("pod", ""))
        return _json(requests.NodeJob(**self._files.begin(node), first_member=first, term=self._term))

    async def _save(self, request: web.Request) -> web.Response:
        return web.json_response(self.handlers.save())

    async def _stop(self, request: web.Request) -> web.Response:
        return web.json_response(self.handlers.stop())

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self.handlers.status())


def _member(request: web.Request) -> int:
    return int(request.match_info["member"])


def _node(request: web.Request) -> int:
    return int(request.match_info["node"])


async def _content(request: web.Request, kind: type[T]) -> T:
    try:
        content = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    return decode(content, kind, request.path.rpartition("/")[2])


def _json(message: object, status: int = 200) -> web.Response:
    return web.json_response(encode(message), status=status)
