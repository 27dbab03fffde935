"""A member in a process of its own: what goes wrong beside the training keeps it neither mute nor from its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.control.auth import ANSWER_HEADER, SIGNATURE_HEADER, Verifier
from elastic_launcher.control.messages import Form, FormFailed, Left, encode
from elastic_launcher.workdir import Layout, write_json
from tests.support.launches import PATIENCE


@contextmanager
def coordinator(folder: Path, *orders: dict[str, Any], told: list[dict[str, Any]] | None = None) -> Iterator[str]:
    """Gives a member one order after the other, and then keeps it waiting; yields its control document.

    Args:
        folder: Where that document is written.
        orders: What the member is to do.
        told: Where its reports are kept.
    """
    left = [{"seq": number, **order} for number, order in enumerate(orders, start=1)]
    over, key = threading.Event(), "5e" * 32
    verifier = Verifier(bytes.fromhex(key))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if told is not None:
                told.extend(content.get("reports", ()))
            self.answer({})

        def do_GET(self) -> None:
            if not left:
                over.wait(PATIENCE)
            self.answer({"orders": [left.pop(0)] if left else []})

        def answer(self, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(200)
            self.send_header(ANSWER_HEADER, verifier.sign_answer(self.headers[SIGNATURE_HEADER], 200, content))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    control = folder / "control.json"
    control.write_text(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "key": key}))
    try:
        yield str(control)
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def run(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, which leaves where it has to."""
    command = [sys.executable, "-c", script]
    variables = {**os.environ, "ELASTIC_WORK_DIR": str(folder), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)


def play(folder: Path, control: str, orphan_timeout: float, then: str = "") -> subprocess.CompletedProcess[str]:
    """Has a member join."""
    script = f"""
import torch
from elastic_launcher.control.messages import Form, Left, Log
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.member import Hooks, Member
member = Member(Launch({control!r}, 1, 1, torchrun=False, local_rank=0), torch.device("cpu"), {orphan_timeout})
member.join(Hooks())
{then}
"""
    return run(folder, script)


def test_an_order_that_fails_is_said_and_those_after_it_are_followed(tmp_path: Path) -> None:
    with coordinator(tmp_path, {"kind": "form"}, {"kind": "end", "reason": "that was all"}) as control:
        found = play(tmp_path, control, 60.0, f"member.orders.stand_still({PATIENCE / 2})")
    assert "JobOver: that was all" in found.stderr
    why = "ValueError: order form: Object missing required field `formation`"
    assert f"elastic-launcher: an order could not be followed ({why})" in found.stderr


def test_a_formation_for_which_no_thread_can_be_started_is_told_as_failed(tmp_path: Path) -> None:
    form = Form(7, 2, "recover", (1, 2), (), (), {}, "127.0.0.1:9", 60.0, "failure")
    then = f"""
import threading
from unittest import mock
with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
    member.orders.obey({form!r})
member.reports.flush()
"""
    told: list[dict[str, Any]] = []
    with coordinator(tmp_path, told=told) as control:
        found = play(tmp_path, control, 60.0, then)
    assert found.returncode == 0, found.stderr
    assert told == [encode(FormFailed(7, "can't start new thread")) | {"n": 1}]


def test_who_waits_for_a_group_learns_who_will_be_in_it_while_it_is_formed(tmp_path: Path) -> None:
    form = Form(7, 2, "recover", (5, 1), (), (), {}, "127.0.0.1:9", 60.0, "failure")
    then = f"""
from unittest import mock
import elastic_launcher.torch.membership.formations as module
with mock.patch.object(module, "start_thread"):  # its group never stands
    member.orders.obey({form!r})
def prepare(coming):
    print(coming.mode, coming.rank_of(1), len(coming.members), coming.group)
    member.formations.interrupt(KeyError("once"))
member.formations.wait_for(lambda formation: True, prepare)
"""
    with coordinator(tmp_path) as control:
        found = play(tmp_path, control, 60.0, then)
    assert found.stdout == "recover 1 2 None\n" and "KeyError: 'once'" in found.stderr, found.stderr


def test_a_report_that_can_not_be_told_at_once_is_told_later(tmp_path: Path) -> None:
    then = """
post, failures = member.connection._client.post, [RuntimeError("can't start new thread")]
def fails_once(*arguments):
    if failures:
        raise failures.pop()
    return post(*arguments)
member.connection._client.post = fails_once
member.reports.put(Log(1, 0, {}))
member.reports.flush()
print("told")
"""
    with coordinator(tmp_path) as control:
        found = play(tmp_path, control, 60.0, then)
    assert (found.returncode, found.stdout) == (0, "told\n"), found.stderr
    assert "a report could not be sent (RuntimeError: can't start new thread); that is tried again" in found.stderr


def test_reports_keep_their_number_when_they_are_sent_again(tmp_path: Path) -> None:
    then = """
from elastic_launcher.control import ControlUnreachable
post, lost = member.connection._client.post, [ControlUnreachable("the answer is lost")]
def loses_one_answer(*arguments):
    answer = post(*arguments)
    if lost:
        raise lost.pop()
    return answer
member.connection._client.post = loses_one_answer
for step in (1, 2):
    member.reports.put(Left(step))
    member.reports.flush()
"""
    told: list[dict[str, Any]] = []
    with coordinator(tmp_path, told=told) as control:
        found = play(tmp_path, control, 60.0, then)
    assert found.returncode == 0, found.stderr
    first, second = encode(Left(1)) | {"n": 1}, encode(Left(2)) | {"n": 2}
    assert told == [first, first, second]


def test_who_leaves_says_that_the_disk_does_not_tell_what_is_saved(tmp_path: Path) -> None:
    """A file's name that the system takes for too long stands in for a disk that answers with an error."""
    checkpoints = Layout(tmp_path).checkpoints
    checkpoints.mkdir()
    pointer = {"checkpoint": f"step-{'1' * 300}", "term": 1, "generation": 1, "step": 1}
    (checkpoints / "latest.json").write_text(json.dumps(pointer))
    found = play(tmp_path, str(tmp_path / "control.json"), 0.2)
    assert found.returncode == 75, found.stderr
    assert "has not been heard of for 0.2 s; what is saved can't be read: [Errno 36]" in found.stderr


def test_a_child_that_the_script_forks_ends_without_a_word_to_the_launcher(tmp_path: Path) -> None:
    script = """
import os, sys
import elastic_launcher.torch as elastic
elastic.init(4, 2)
child = os.fork()
if child == 0:
    sys.exit(3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    config = JobConfig(script="train.py", global_batch_size=4, max_batch_per_gpu=2)
    write_json(Layout(tmp_path).job, {"id": "forks", "config": config.to_dict()})
    rank = {"ELASTIC_MEMBER": "1", "ELASTIC_NODE": "1", "TORCHELASTIC_RUN_ID": "forks"}
    with coordinator(tmp_path) as control:
        found = run(tmp_path, script, ELASTIC_CONTROL=control, **rank)
    assert found.returncode == 3, found.stderr
