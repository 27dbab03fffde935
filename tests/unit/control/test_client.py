"""The client against servers that misbehave; against the real one: tests/local/test_control.py."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control import client as client_module
from elastic_launcher.control.auth import ANSWER_HEADER, COUNTER_HEADER, SIGNATURE_HEADER, Verifier, sign_answer

KEY = "5e" * 32


class Script:
    """What a server does with one request after another: an answer (status, content), or None to hang up.

    Args:
        answers: The last one is repeated.
        key: What answers are signed with; None for a server that knows of no such thing.
    """

    def __init__(self, *answers: tuple[int, Any] | None, key: str | None = KEY) -> None:
        self.answers = list(answers)
        self.key = key
        self.sign = lambda request: request  # whose answer it is said to be
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            script.connections += 1
            super().setup()

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append((self.command, self.path, dict(self.headers), body))
            answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            content = json.dumps(answer[1]).encode() if answer[1] is not None else b"<html>"
            self.send_response(answer[0])
            if script.key is not None:
                asked = script.sign(self.headers[SIGNATURE_HEADER])
                self.send_header(ANSWER_HEADER, sign_answer(bytes.fromhex(script.key), asked, answer[0], content))
            if 300 <= answer[0] < 400:
                self.send_header("Location", "http://127.0.0.1:1/login")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_requests_are_signed_on_one_kept_connection() -> None:
    script = Script((200, {"fine": True}))
    with serving(script) as url, ControlClient(url, "m1", KEY) as client:
        for _ in range(3):
            assert client.get("/v1/members/1/orders?after=0&wait=0") == {"fine": True}
    verifier = Verifier(bytes.fromhex(KEY))
    assert [verifier.verify(*request) for request in script.requests] == ["m1"] * 3
    assert script.connections == 1


def test_each_path_has_a_connection_of_its_own() -> None:
    script = Script((200, {}))
    with serving(script) as url, ControlClient(url, "m1", KEY) as client:
        client.get("/v1/members/1/orders?after=0")
        client.get("/v1/members/1/orders?after=1")
        client.post("/v1/members/1/reports", {"reports": []})
    assert script.connections == 2


def test_a_request_is_tried_again_after_a_hang_up_and_signed_again() -> None:
    script = Script(None, None, (200, {"fine": True}))
    with serving(script) as url, ControlClient(url, "m1", KEY) as client:
        assert client.post("/v1/nodes/1/notice", {"source": "signal"}) == {"fine": True}
    counters = [int(request[2][COUNTER_HEADER]) for request in script.requests]
    assert len(counters) == 3
    assert counters == sorted(set(counters))


@pytest.mark.parametrize("answer", [None, (503, {"error": "not now"}), (200, None), (200, [])])
def test_it_gives_up_after_a_bounded_number_of_tries(answer: tuple[int, Any] | None) -> None:
    script = Script(answer)
    with serving(script) as url, ControlClient(url, "m1", KEY) as client, pytest.raises(ControlUnreachable):
        client.get("/v1/status")
    assert len(script.requests) == 5


def test_a_refusal_is_told_at_once() -> None:
    script = Script((404, {"error": "there is no member 9"}))
    with (
        serving(script) as url,
        ControlClient(url, "m9", KEY) as client,
        pytest.raises(ControlRefused, match="there is no member 9") as refusal,
    ):
        client.get("/v1/status")
    assert refusal.value.status == 404
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, "default backend - 404"),  # whatever answers before the Service has endpoints
        (200, None),  # a captive proxy's page
        (200, {}),
        (302, ""),
        (401, {"error": "the signature is not this job's"}),  # another job's coordinator at this one's old address
        (401, {"error": "used before", "used": 10**19}),
        (409, {"error": "this is the coordinator of term 9, not of term 1", "term": 9}),
    ],
)
@pytest.mark.parametrize("key", [None, "77" * 32])
def test_what_the_jobs_key_has_not_signed_is_no_answer_and_is_named_in_the_log(
    status: int, content: Any, key: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RETRY_PAUSES", (0.0,) * len(client_module.RETRY_PAUSES))
    stranger = Script((status, content), key=key)
    with serving(stranger) as url, ControlClient(url, "m1", KEY) as client:
        for _ in range(2):
            with pytest.raises(
                ControlUnreachable, match=rf"HTTP {status} from 127\.0\.0\.1:\d+ is no answer of this job's"
            ):
                client.get("/v1/nodes/1/job")
        assert len(stranger.requests) == 10
        assert all(int(request[2][COUNTER_HEADER]) < 10**19 for request in stranger.requests)
        stranger.answers, stranger.key = [(200, {"fine": True})], KEY
        assert client.get("/v1/nodes/1/job") == {"fine": True}
    told = [line for line in capsys.readouterr().err.splitlines() if "no answer" in line]
    assert len(told) == 1 and told[0].endswith("the coordinator is tried again")


def test_an_answer_to_another_request_is_none() -> None:
    script = Script((200, {"fine": True}))
    with serving(script) as url, ControlClient(url, "m1", KEY) as client:
        client.get("/v1/status")
        recorded = script.requests[0][2][SIGNATURE_HEADER]
        script.sign = lambda request: recorded
        with pytest.raises(ControlUnreachable, match="no answer of this job's coordinator"):
            client.get("/v1/status")


def test_the_coordinator_is_asked_at_its_own_address_whatever_proxies_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(Script((200, {"fine": True}))) as url, ControlClient(url, "m1", KEY) as client:
        assert client.get("/v1/status") == {"fine": True}


def test_a_counter_below_one_that_was_used_is_signed_again_above_it() -> None:
    """As from a user whose clock was set back between two commands."""
    used = time.time_ns() + 3600 * 10**9
    script = Script((401, {"error": "used before", "used": used}), (200, {"fine": True}))
    with serving(script) as url, ControlClient(url, "cli", KEY) as client:
        assert client.get("/v1/status") == {"fine": True}
    assert [int(request[2][COUNTER_HEADER]) > used for request in script.requests] == [False, True]


def test_the_time_out_bounds_the_whole_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with ControlClient(url, "m1", KEY) as client, pytest.raises(ControlUnreachable, match="timed out"):
            client.get("/v1/status", timeout=0.3)
    assert 0.3 <= time.monotonic() - started < 2.0


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"url": "http://127.0.0.1:1"}'])
def test_a_control_file_that_is_not_there_or_not_whole_is_an_unreachable_coordinator(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "control.json"
    if text is not None:
        path.write_text(text)
    with ControlClient(str(path), "m1") as client, pytest.raises(ControlUnreachable, match=str(path)):
        client.get("/v1/status", timeout=0.2)


def test_a_url_needs_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        ControlClient("http://127.0.0.1:1", "m1")


def test_close_wakes_a_request_that_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "m1", KEY)
        problems: list[BaseException] = []

        def ask() -> None:
            try:
                client.get("/v1/status", timeout=30.0)
            except ControlUnreachable as error:
                problems.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = silent.accept()
        connection.recv(1)  # the request is under way
        client.close()
        thread.join(5.0)
        connection.close()
    assert not thread.is_alive()
    assert len(problems) == 1
