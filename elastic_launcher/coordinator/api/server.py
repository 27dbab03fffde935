"""The control API over HTTP: signed requests in, orders out within milliseconds; what they mean is for the desk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from aiohttp import web

from elastic_launcher.control.auth import (
    ANSWER_HEADER,
    LARGEST_BODY,
    SENDER_HEADER,
    SIGNATURE_HEADER,
    Refusal,
    Verifier,
)
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Message, report_from_dict
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.runtime.endpoints import HERE, Endpoint
from elastic_launcher.coordinator.runtime.node_files import NodeFiles

LONGEST_WAIT = 30.0  # seconds that a request for orders may ask to be kept waiting
CLOSE_SECONDS = 0.5  # that requests under way get to end when the server closes
FIRST_MEMBER = "first_member"
"""By what an agent says which of its node's pods it is in."""
REMEMBERED_REPORTS = 4096  # a member's numbers of reports, to tell a repeated one from a new one

logger = logging.getLogger(__name__)


class NotYetError(Exception):
    """The coordinator can't answer yet; whoever asks is to ask again."""


class Handlers(Protocol):
    """Who answers: every method returns at once, and raises ``LookupError`` for a member or node that never was."""

    def join(self, member: int, pid: int, version: str) -> dict[str, Any]:
        """Returns where the job stands."""

    def introduce(self, member: int, introduction: Introduction) -> dict[str, Any]:
        """Takes where a member stands that an earlier coordinator knew; returns what it needs to go on."""

    def report(self, member: int, report: Message) -> None:
        """Takes a member's report."""

    def hear(self, member: int, vitals: Vitals | None = None) -> None:
        """Takes it that a member lives, and what it does, if it says so."""

    def register(self, node: int, pod: str) -> int:
        """Takes it that a node's agent begins, in a pod of that name if it is in one; returns its first member."""

    def is_superseded(self, node: int, member: int) -> bool:
        """Returns whether a member was of a pod of the node that its queue has taken back."""

    def node_heartbeat(self, node: int, pid: int, notices: int = 0) -> bool:
        """Takes it that a node's agent lives, and was told so often that it will go; returns whether it is to go."""

    def ask_about(self, node: int, cpu: Mapping[int, float]) -> list[int]:
        """Takes how many seconds of CPU members of a node have used; returns those about which that is asked next."""

    def node_life(self, node: int, life: dict[str, Any]) -> None:
        """Takes what happened to a node's workers."""

    def node_notice(self, node: int, source: str) -> None:
        """Takes it that a node will go."""

    def node_unfit(self, node: int, message: str) -> None:
        """Takes it that a node's machine lacks what the job needs."""

    def rank_ended(self, node: int, local_rank: int, exit_code: int | None, signal: int | None) -> None:
        """Takes it that a member's process ended."""

    def save(self) -> dict[str, Any]:
        """Has the job saved after its next step; returns the step at which it stands."""

    def stop(self) -> dict[str, Any]:
        """Has the job saved and ended; returns where it stands, and whether it was stopping before."""

    def status(self) -> dict[str, Any]:
        """Returns the status document."""


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
        key: The job's key.
        desk: Who answers.
        term: Number of the coordinator's reign.
        where: Where it listens, and what it is called.
        files: Of nodes that see none of this machine's; None where there are no such nodes.
        refused: Takes what nobody of the job can have asked: address, request, sender by its own word, what is wrong.

    Attributes:
        desk: Who answers from now on.
    """

    def __init__(
        self,
        key: bytes,
        desk: Handlers,
        term: int = 1,
        where: Endpoint = HERE,
        files: NodeFiles | None = None,
        refused: Callable[[str, str, str, str], None] = lambda *request: None,
    ) -> None:
        self._where = where
        self._files = files
        self._refused = refused
        self._verifier = Verifier(key, after=time.time_ns())  # senders begin at theirs, and go above it where told
        self.desk = desk
        self._term = term
        self._mailboxes: dict[int, _Mailbox] = {}
        self._seen: dict[int, _Seen] = {}
        self._runner: web.AppRunner | None = None
        self._closing = False

    async def start(self) -> str:
        """Starts to listen, and returns the URL."""
        application = web.Application(middlewares=[self._guard], client_max_size=LARGEST_BODY)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/join", self._join)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/introduce", self._introduce)
        application.router.add_get(r"/v1/members/{member:\d{1,9}}/orders", self._orders)
        application.router.add_post(r"/v1/members/{member:\d{1,9}}/reports", self._reports)
        application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/heartbeat", self._heartbeat)
        application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/life", self._life)
        application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/notice", self._notice)
        application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/rank_ended", self._rank_ended)
        if self._files is not None:
            application.router.add_get(r"/v1/nodes/{node:\d{1,9}}/job", self._job)
            application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/log", self._log)
            application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/sample", self._sample)
            application.router.add_post(r"/v1/nodes/{node:\d{1,9}}/unfit", self._unfit)
        application.router.add_get("/v1/status", self._status)
        application.router.add_post("/v1/save", self._save)
        application.router.add_post("/v1/stop", self._stop)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._where.bind, self._where.control_port, reuse_address=True)
        await site.start()
        return f"http://{self._where.advertised}:{self._runner.addresses[0][1]}"

    def order(self, members: Iterable[int], order: Message) -> None:
        """Puts an order where the members' waiting requests find it at once."""
        text = json.dumps(order.to_dict())  # once for all of them: a formation names each of its members
        for member in members:
            self._mailbox(member).put(text)

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
            answer = web.json_response({"error": str(refusal), "used": refusal.used}, status=refusal.status)
            return self._signed(request, answer) if refusal.proven else answer
        except _OtherTermError as error:
            content, status = {"error": str(error), "term": self._term}, 409
        except NotYetError as error:
            content, status = {"error": str(error)}, 503
        except web.HTTPException as error:
            content, status = {"error": error.reason}, error.status
        except LookupError as error:
            content, status = {"error": str(error.args[0] if error.args else error)}, 404
        except (ValueError, TypeError) as error:
            content, status = {"error": str(error)}, 400
        except Exception as error:
            logger.exception("%s %s can't be answered", request.method, request.path)
            content, status = {"error": f"{type(error).__name__}: {error}"}, 500
        return self._signed(request, web.json_response(content, status=status))

    def _signed(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Returns an answer with the proof that it is this coordinator's, and to this request."""
        assert isinstance(answer, web.Response) and isinstance(answer.body, bytes)
        asked = request.headers.get(SIGNATURE_HEADER, "")
        answer.headers[ANSWER_HEADER] = self._verifier.sign_answer(asked, answer.status, answer.body)
        return answer

    async def _join(self, request: web.Request) -> web.Response:
        content = await _content(request)
        version = str(content.get("version", ""))
        return web.json_response(self.desk.join(_member(request), _whole(content, "pid"), version))

    async def _introduce(self, request: web.Request) -> web.Response:
        answer = self.desk.introduce(_member(request), Introduction.from_dict(await _content(request)))
        return web.json_response({**answer, "term": self._term})

    def _check_term(self, text: object) -> None:
        """Refuses who believes in another coordinator, so that it looks for the right one and introduces itself."""
        if text is not None and str(text) != str(self._term):
            raise _OtherTermError(f"this is the coordinator of term {self._term}, not of term {text}")

    async def _orders(self, request: web.Request) -> web.Response:
        member = _member(request)
        self._check_term(request.query.get("term"))
        self.desk.hear(member, Vitals.from_query(request.query))
        after, wait = int(request.query.get("after", "0")), float(request.query.get("wait", "2"))
        wait = 0.0 if self._closing else max(0.0, min(wait, LONGEST_WAIT))
        orders = await self._mailbox(member).after(after, wait)
        text = f'{{"orders": {orders}, "term": {self._term}}}'
        return web.Response(text=text, content_type="application/json")

    async def _reports(self, request: web.Request) -> web.Response:
        member, content = _member(request), await _content(request)
        found = content.get("reports")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ValueError("reports must be a list of objects")
        self._check_term(content.get("term"))
        self.desk.hear(member)
        seen = self._seen.setdefault(member, _Seen())
        reports = [(one.get("n"), report_from_dict(one)) for one in found]
        for number, report in reports:
            if not isinstance(number, int) or seen.take(number):
                self.desk.report(member, report)
        return web.json_response({})

    async def _heartbeat(self, request: web.Request) -> web.Response:
        content, node = await _content(request), _node(request)
        if self._is_superseded(node, content):
            return web.json_response({"leave": True})
        leave = self.desk.node_heartbeat(node, _whole(content, "pid"), int(content.get("notices", 0)))
        cpu = {int(member): float(seconds) for member, seconds in dict(content.get("cpu", {})).items()}
        about = self.desk.ask_about(node, cpu)
        return web.json_response({**({"leave": True} if leave else {}), **({"about": about} if about else {})})

    async def _life(self, request: web.Request) -> web.Response:
        content = await self._content_of_node(request)
        self.desk.node_life(_node(request), content)
        return web.json_response({})

    async def _notice(self, request: web.Request) -> web.Response:
        content = await self._content_of_node(request)
        self.desk.node_notice(_node(request), str(content.get("source", "signal")))
        return web.json_response({})

    async def _rank_ended(self, request: web.Request) -> web.Response:
        content = await self._content_of_node(request)
        code, signal = (
            None if content.get(name) is None else _whole(content, name) for name in ("exit_code", "signal")
        )
        place = _node(request), _whole(content, "local_rank")
        if self._files is not None:
            self._files.note_exit(*place, code, signal, content.get(FIRST_MEMBER))
        self.desk.rank_ended(*place, code, signal)
        return web.json_response({})

    async def _job(self, request: web.Request) -> web.Response:
        assert self._files is not None
        node = _node(request)
        first = self.desk.register(node, request.query.get("pod", ""))
        return web.json_response({**self._files.begin(node), FIRST_MEMBER: first, "term": self._term})

    async def _log(self, request: web.Request) -> web.Response:
        assert self._files is not None
        content = await self._content_of_node(request)
        place = _node(request), _whole(content, "local_rank")
        self._files.add_to_log(*place, _whole(content, "offset"), str(content.get("data", "")))
        return web.json_response({})

    async def _sample(self, request: web.Request) -> web.Response:
        assert self._files is not None
        name = str((await _content(request)).get("name", ""))
        return web.json_response({"lack": await asyncio.to_thread(self._files.judge, _node(request), name)})

    async def _unfit(self, request: web.Request) -> web.Response:
        content = await self._content_of_node(request)
        self.desk.node_unfit(_node(request), str(content.get("message", "")))
        return web.json_response({})

    async def _save(self, request: web.Request) -> web.Response:
        return web.json_response(self.desk.save())

    async def _stop(self, request: web.Request) -> web.Response:
        return web.json_response(self.desk.stop())

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self.desk.status())

    async def _content_of_node(self, request: web.Request) -> dict[str, Any]:
        """Returns what an agent says; refuses one of a pod that the node's queue has taken back."""
        content = await _content(request)
        if self._is_superseded(_node(request), content):
            raise LookupError(f"this pod of node {_node(request)} is not wanted any more")
        return content

    def _is_superseded(self, node: int, content: dict[str, Any]) -> bool:
        return FIRST_MEMBER in content and self.desk.is_superseded(node, _whole(content, FIRST_MEMBER))

    def _mailbox(self, member: int) -> _Mailbox:
        return self._mailboxes.setdefault(member, _Mailbox())


def _member(request: web.Request) -> int:
    return int(request.match_info["member"])


def _node(request: web.Request) -> int:
    return int(request.match_info["node"])


async def _content(request: web.Request) -> dict[str, Any]:
    try:
        content = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("the body must be a JSON object")
    return content


def _whole(content: dict[str, Any], name: str) -> int:
    value = content.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value
