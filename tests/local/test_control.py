"""The control API's two real sides: the coordinator's server and the client that ranks and agents carry."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import statistics
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.auth import (
    ANSWER_HEADER,
    LARGEST_BODY,
    PROTOCOL_VERSION,
    SIGNATURE_HEADER,
    VERSION_HEADER,
    answers,
    signed_headers,
)
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import End, Formed, encode
from elastic_launcher.coordinator.api.rejoin import Rejoin
from elastic_launcher.coordinator.api.server import ControlServer
from tests.support.control_recorder import KEY, Desk
from tests.support.launches import until


@asynccontextmanager
async def serving(
    path: Path, desk: Desk | Rejoin | None = None, refused: Callable[..., None] = lambda *request: None
) -> AsyncIterator[ControlServer]:
    """Runs a server, and writes where it is into a control file."""
    server = ControlServer(KEY, desk or Desk(), refused=refused)
    url = await server.start()
    path.write_text(json.dumps({"v": 1, "url": url, "key": KEY.hex(), "store": "", "term": 1}))
    try:
        yield server
    finally:
        await server.close()


async def ask(client: ControlClient, path: str, payload: Struct | dict[str, Any] | None = None) -> dict[str, Any]:
    if payload is None:
        return await asyncio.to_thread(client.get, path, 20.0)
    return await asyncio.to_thread(client.post, path, payload)


@pytest.mark.quick
def test_an_order_reaches_a_waiting_member_within_milliseconds(tmp_path: Path) -> None:
    async def play() -> list[float]:
        delays = []
        async with serving(tmp_path / "control.json") as server:
            with ControlClient(str(tmp_path / "control.json"), "m1") as client:
                for seq in range(20):
                    waiting = asyncio.ensure_future(ask(client, f"/v1/members/1/orders?after={seq}&wait=10"))
                    await asyncio.sleep(0.02)  # it waits at the server by now
                    sent = time.monotonic()
                    server.order((1,), End(f"reason {seq}"))
                    answer = await waiting
                    delays.append(time.monotonic() - sent)
                    assert answer == {"orders": [{"seq": seq + 1, **encode(End(f"reason {seq}"))}], "term": 1}
        return delays

    assert statistics.median(asyncio.run(play())) < 0.02


def test_orders_are_kept_until_they_are_asked_for(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path / "control.json") as server:
            with ControlClient(str(tmp_path / "control.json"), "m1") as client:
                for number in (1, 2, 3):
                    server.order((1,), End(str(number)))
                server.order((2,), End("not for 1"))
                for after in (0, 1, 0):
                    answer = await ask(client, f"/v1/members/1/orders?after={after}&wait=10")
                    assert [order["seq"] for order in answer["orders"]] == [1, 2, 3][after:]
                empty = await ask(client, "/v1/members/1/orders?after=3&wait=0.05")
                assert empty == {"orders": [], "term": 1}

    asyncio.run(play())


def test_requests_that_wait_are_answered_when_the_server_closes(tmp_path: Path) -> None:
    async def play() -> float:
        async with serving(tmp_path / "control.json"):
            client = ControlClient(str(tmp_path / "control.json"), "m1")
            waiting = asyncio.ensure_future(ask(client, "/v1/members/1/orders?after=0&wait=10"))
            await asyncio.sleep(0.1)
            closed = time.monotonic()
        assert (await waiting)["orders"] == []
        client.close()
        return time.monotonic() - closed

    assert asyncio.run(play()) < 3.0


def test_all_that_is_told_arrives(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        async with serving(tmp_path / "control.json", desk):
            with ControlClient(str(tmp_path / "control.json"), "m1") as member:
                joined = await ask(
                    member, "/v1/members/1/join", {"pid": 7, "node": 1, "local_rank": 0, "version": "0.1"}
                )
                assert (joined["epoch"], joined["step"], joined["begun"]) == (1, 40, True)
                await ask(member, "/v1/members/1/reports", {"reports": [{"kind": "formed", "formation": 3}]})
            with ControlClient(str(tmp_path / "control.json"), "n1") as agent:
                await ask(agent, "/v1/nodes/1/heartbeat", {"pid": 6})
                await ask(agent, "/v1/nodes/1/notice", {"source": "signal"})
                ended = {"local_rank": 0, "exit_code": None, "signal": 9}
                await ask(agent, "/v1/nodes/1/rank_ended", ended)
            with ControlClient(str(tmp_path / "control.json"), "cli") as user:
                assert await ask(user, "/v1/status") == {"v": 1, "step": 40}

    desk = Desk()
    asyncio.run(play(desk))
    assert desk.told == [
        ("join", 1, 7, "0.1"),
        (1, Formed(3)),
        ("heartbeat", 1, 6),
        ("notice", 1, "signal"),
        ("rank_ended", 1, 0, None, 9),
    ]


def test_a_report_that_is_sent_twice_is_taken_once(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        async with serving(tmp_path / "control.json", desk):
            with ControlClient(str(tmp_path / "control.json"), "m1") as client:
                report = {"kind": "formed", "formation": 3, "n": 1}
                for _ in range(2):
                    await ask(client, "/v1/members/1/reports", {"reports": [report]})
                await ask(
                    client, "/v1/members/1/reports", {"reports": [report, {"kind": "formed", "formation": 4, "n": 2}]}
                )

    desk = Desk()
    asyncio.run(play(desk))
    assert desk.told == [(1, Formed(3)), (1, Formed(4))]


@pytest.mark.parametrize(
    ("sender", "path", "payload", "status", "complaint"),
    [
        ("m1", "/v1/members/2/join", {"pid": 7}, 403, "m1 can't speak for member 2"),
        ("m1", "/v1/nodes/1/notice", {}, 403, "m1 can't speak for node 1"),
        ("m9", "/v1/members/9/join", {"pid": 7}, 404, "there is no member 9"),
        ("m9", "/v1/members/9/orders?after=0", None, 404, "there is no member 9"),
        ("m1", "/v1/members/1/join", {"pid": "7"}, 400, r"join: Expected `int`, got `str` - at `\$.pid`"),
        ("m1", "/v1/members/1/orders?after=x", None, 400, r"the query: Expected `int`, got `str` - at `\$.after`"),
        ("m1", "/v1/members/1/reports", {"reports": [{"kind": "dance"}]}, 400, "report dance: Invalid value 'dance'"),
        ("m1", "/v1/members/1/reports", {}, 400, "reports: Object missing required field `reports`"),
        (
            "n1",
            "/v1/nodes/1/rank_ended",
            {"local_rank": 0, "signal": "KILL"},
            400,
            r"rank_ended: Expected `int \| null`, got `str` - at `\$.signal`",
        ),
        ("cli", "/v1/elsewhere", None, 404, "Not Found"),
        ("m1", "/v1/members/1/join", None, 405, "Method Not Allowed"),
    ],
)
def test_what_can_not_be_meant_is_refused_with_a_reason(
    tmp_path: Path, sender: str, path: str, payload: dict[str, Any] | None, status: int, complaint: str
) -> None:
    async def play() -> ControlRefused:
        async with serving(tmp_path / "control.json"):
            with (
                ControlClient(str(tmp_path / "control.json"), sender) as client,
                pytest.raises(ControlRefused, match=complaint) as refusal,
            ):
                await ask(client, path, payload)
            return refusal.value

    assert asyncio.run(play()).status == status


@pytest.mark.quick
def test_who_does_not_have_the_key_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        async with serving(tmp_path / "control.json", desk):
            url = json.loads((tmp_path / "control.json").read_text())["url"]
            with (
                ControlClient(url, "m1", "00" * 32) as client,
                pytest.raises(ControlUnreachable, match="HTTP 401 from .*the signature is not this job's"),
            ):
                await ask(client, "/v1/members/1/join", {"pid": 7})

    desk = Desk()
    asyncio.run(play(desk))
    assert desk.told == desk.heard == []


def test_every_answer_to_who_holds_the_key_is_signed_and_no_other(tmp_path: Path) -> None:
    """An error too, be it of the routes: only so it is told from a stranger's."""

    async def play() -> None:
        async with serving(tmp_path / "control.json"):
            url = json.loads((tmp_path / "control.json").read_text())["url"]
            async with aiohttp.ClientSession() as session:
                for method, path in (
                    ("GET", "/v1/status"),
                    ("GET", "/v1/members/9/orders"),
                    ("GET", "/v1/nodes/1/notice"),
                    ("POST", "/v1/nowhere"),
                    ("POST", "/v1/members/2/join"),
                ):
                    for key in (KEY, bytes(32)):
                        headers = signed_headers(key, method, path, b"", "m1", time.time_ns())
                        asked = headers[SIGNATURE_HEADER]
                        async with session.request(method, url + path, headers=headers) as answer:
                            signature, body = answer.headers.get(ANSWER_HEADER), await answer.read()
                            if key == KEY:
                                assert answers(KEY, asked, answer.status, body, signature or ""), (method, path)
                            else:
                                assert (answer.status, signature) == (401, None)

    asyncio.run(play())


def notice_headers(version: str = str(PROTOCOL_VERSION)) -> dict[str, str]:
    """Returns what a node's notice is sent with, signed now."""
    signed = signed_headers(KEY, "POST", "/v1/nodes/1/notice", b"{}", "n1", time.time_ns())
    return {**signed, VERSION_HEADER: version}


async def send_notice(path: Path, headers: dict[str, str]) -> int:
    url = json.loads(path.read_text())["url"] + "/v1/nodes/1/notice"
    async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize(("version", "statuses"), [(str(PROTOCOL_VERSION), [200, 401]), ("1", [409, 409])])
def test_a_replayed_request_and_another_version_are_refused_and_told(
    tmp_path: Path, version: str, statuses: list[int]
) -> None:
    told: list[tuple[str, ...]] = []

    async def play(desk: Desk) -> list[int]:
        async with serving(tmp_path / "control.json", desk, lambda *request: told.append(request)):
            headers = notice_headers(version)
            return [await send_notice(tmp_path / "control.json", headers) for _ in range(2)]

    desk = Desk()
    assert asyncio.run(play(desk)) == statuses
    assert len(desk.told) == statuses.count(200)
    assert [one[:3] for one in told] == [("127.0.0.1", "POST /v1/nodes/1/notice", "n1")] * (2 - statuses.count(200))


def test_a_request_to_an_earlier_coordinator_is_refused_by_the_next(tmp_path: Path) -> None:
    async def play(desk: Desk) -> list[int]:
        async with serving(tmp_path / "control.json"):
            recorded = notice_headers()
            first = await send_notice(tmp_path / "control.json", recorded)
        async with serving(tmp_path / "control.json", desk):
            return [first, await send_notice(tmp_path / "control.json", recorded)]

    desk = Desk()
    assert asyncio.run(play(desk)) == [200, 401]
    assert desk.told == []


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_client_that_is_killed_in_mid_request_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    def cut(port: int) -> None:
        head = (
            b"POST /v1/members/1/reports HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head)
            assert b"100 Continue" in client.recv(100)  # now it is handled
            client.sendall(b"{")
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: "was cut off" in caplog.text, "the server notices")

    async def play() -> None:
        async with serving(tmp_path / "control.json"):
            url = json.loads((tmp_path / "control.json").read_text())["url"]
            await asyncio.to_thread(cut, int(url.rpartition(":")[2]))

    caplog.set_level(logging.DEBUG)
    asyncio.run(play())
    assert [record.message for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_client_finds_a_coordinator_that_came_back_elsewhere(tmp_path: Path) -> None:
    async def play() -> list[str]:
        path, urls = tmp_path / "control.json", []
        client = ControlClient(str(path), "m1")
        for _ in range(2):
            async with serving(path):
                urls.append(json.loads(path.read_text())["url"])
                assert (await ask(client, "/v1/members/1/orders?after=0&wait=0"))["orders"] == []
        client.close()
        return urls

    first, second = asyncio.run(play())
    assert first != second


def test_two_users_may_ask_for_the_status_at_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path / "control.json"):
            clients = [ControlClient(str(tmp_path / "control.json"), "cli") for _ in range(4)]
            answers = await asyncio.gather(*(ask(client, "/v1/status") for client in clients for _ in range(5)))
            for client in clients:
                client.close()
            assert all(answer["step"] == 40 for answer in answers)

    asyncio.run(play())


def test_who_follows_another_coordinator_is_told_which_one_this_is(tmp_path: Path) -> None:
    """With that it introduces itself, or, where this one was replaced, looks for the other."""

    async def play(desk: Desk) -> list[int | None]:
        terms = []
        async with serving(tmp_path / "control.json", desk):
            with ControlClient(str(tmp_path / "control.json"), "m1") as client:
                for path, payload in (
                    ("/v1/members/1/orders?after=0&wait=10&term=2", None),
                    ("/v1/members/1/reports", {"reports": [{"kind": "formed", "formation": 3}], "term": 0}),
                ):
                    with pytest.raises(ControlRefused, match="this is the coordinator of term 1, not of term") as found:
                        await ask(client, path, payload)
                    terms.append(found.value.term)
                known = Introduction(7, step=40)
                assert await ask(client, "/v1/members/1/introduce", known) == {"store": "", "term": 1}
        assert desk.told == [("introduce", 1, known)]
        return terms

    assert asyncio.run(play(Desk())) == [1, 1]


def test_a_coordinator_that_has_just_come_back_has_newcomers_ask_again(tmp_path: Path) -> None:
    async def play(desk: Desk) -> None:
        held: list[Callable[[], object]] = []
        gathering = Rejoin(desk, held.append, lambda member: member == 9)  # type: ignore[arg-type]
        async with serving(tmp_path / "control.json", gathering) as server:
            client = ControlClient(str(tmp_path / "control.json"), "m1")
            with pytest.raises(ControlUnreachable, match="is taking over the job"):
                await asyncio.to_thread(client.post, "/v1/members/1/join", {"pid": 7}, 0.5)
            refused = pytest.raises(ControlRefused, match="member 9 is not wanted any more")
            with ControlClient(str(tmp_path / "control.json"), "m9") as other, refused:
                await ask(other, "/v1/members/9/introduce", Introduction(9))
            known = Introduction(7, step=40)
            await ask(client, "/v1/members/1/introduce", known)
            await ask(client, "/v1/members/1/reports", {"reports": [{"kind": "formed", "formation": 3}], "term": 1})
            assert gathering.introductions == {1: known}
            server.handlers = desk
            for take in held:
                take()
            await ask(client, "/v1/members/1/join", {"pid": 7})
            client.close()

    desk = Desk()
    asyncio.run(play(desk))
    assert desk.told == [(1, Formed(3)), ("join", 1, 7, "")]


def test_what_is_too_large_is_refused_at_once_and_the_next_report_arrives(tmp_path: Path) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(tmp_path / "control.json", desk):
            with ControlClient(str(tmp_path / "control.json"), "n1") as client:
                with pytest.raises(ControlRefused, match="must have fewer than") as refused:
                    await asyncio.to_thread(client.post, "/v1/nodes/1/notice", {"source": "x" * LARGEST_BODY})
                assert refused.value.status == 413
                await asyncio.to_thread(client.post, "/v1/nodes/1/notice", {"source": "signal"})
        assert desk.told == [("notice", 1, "signal")]

    asyncio.run(scenario())


def test_what_the_coordinator_fails_at_is_its_own_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Desk):
        def status(self) -> dict[str, Any]:
            raise RuntimeError("out of luck")

    async def scenario() -> None:
        async with serving(tmp_path / "control.json", Broken()):
            with (
                ControlClient(str(tmp_path / "control.json"), "cli") as client,
                pytest.raises(ControlUnreachable, match="gave no answer: RuntimeError: out of luck"),
            ):
                await asyncio.to_thread(client.get, "/v1/status")

    asyncio.run(scenario())
    assert "GET /v1/status can't be answered" in caplog.text
