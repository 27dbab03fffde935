"""What tests of several processes need: start the launcher, wait for what it writes, see that nothing is left."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import psutil

from elastic_launcher.control import ControlClient
from elastic_launcher.control.auth import ANSWER_HEADER, SIGNATURE_HEADER, Verifier
from elastic_launcher.host import processes
from elastic_launcher.host.machine import gpus
from elastic_launcher.workdir import write_json

PATIENCE = 60.0
"""Seconds that a test waits for something that ought to come within a few, on a machine that does other things too."""
POLL = 0.02
NODES_ON_A_GPU = 8
_PR_SET_CHILD_SUBREAPER = 36
T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
    """Waits for ``condition`` to return something true, and returns it; fails with ``what`` after ``timeout``."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        time.sleep(POLL)
    return value


def assert_no_process(work_dir: Path, timeout: float = 5.0) -> None:
    """Fails if a process that has ``work_dir`` in its environment lives on; what just died has ``timeout`` to go."""
    until(lambda: not processes.find(str(work_dir)), f"processes of {work_dir} end: {_names(work_dir)}", timeout)


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Makes orphaned descendants ours instead of the system's: how they end can be waited for."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _names(work_dir: Path) -> list[str]:
    names = []
    for process in processes.find(str(work_dir)):
        with contextlib.suppress(psutil.Error):
            names.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return names


class EventFollower:
    """Reads ``events.jsonl`` as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[dict[str, Any]]:
        """Returns all events so far."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Returns the events of one kind so far."""
        return [event for event in self.all() if event["kind"] == kind]

    def wait(
        self, kind: str, test: Callable[[dict[str, Any]], bool] = lambda event: True, timeout: float = PATIENCE
    ) -> dict[str, Any]:
        """Returns the first event of that kind that passes ``test``, when it is there."""
        return until(
            lambda: next((event for event in self.of(kind) if test(event)), None),
            f"event {kind} in {self.path}",
            timeout,
        )


@dataclass
class Launcher:
    """A launcher under way, in a process of its own."""

    process: subprocess.Popen[bytes]
    work_dir: Path
    stdout_path: Path
    stderr_path: Path

    @property
    def events(self) -> EventFollower:
        """Its events."""
        return EventFollower(self.work_dir / "events.jsonl")

    @property
    def stdout(self) -> str:
        """What it wrote to stdout so far."""
        return self.stdout_path.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it wrote to stderr so far."""
        return self.stderr_path.read_text(errors="replace")

    @property
    def last_message(self) -> str:
        """What its last event said."""
        return str(self.events.all()[-1]["message"])

    def wait(self, timeout: float = PATIENCE) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher does not end within {timeout:g} s:\n{self.stderr[-4000:]}")

    def status(self) -> dict[str, Any]:
        """Returns what the coordinator says about its job."""
        with contextlib.closing(ControlClient(str(self.work_dir / "control.json"), "cli")) as client:
            return client.get("/v1/status")

    def node_pid(self, node: int, timeout: float = PATIENCE) -> int:
        """Returns the process id of a node's agent: SIGTERM to it is notice."""
        path = self.work_dir / "nodes" / f"{node}.json"
        until(path.exists, f"{path} is there", timeout)
        return int(json.loads(path.read_text())["pid"])


def _shared_gpu() -> dict[str, str]:
    """Returns an environment in which a launcher starts many nodes of one rank on the machine's first GPU, if any."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus()[:1] * NODES_ON_A_GPU)} if gpus() else {}


@contextlib.contextmanager
def launched(
    *arguments: str | Path,
    cwd: Path,
    work_dir: Path | None = None,
    environment: dict[str, str] | None = None,
    program: tuple[str | Path, ...] = ("-m", "elastic_launcher"),
) -> Iterator[Launcher]:
    """Runs ``elastic-launcher run --work-dir WORK_DIR ARGUMENTS...``, and leaves no process whatever the test does."""
    folder = work_dir or cwd / "job"
    stem = cwd / f"launcher-{secrets.token_hex(3)}"
    stdout, stderr = stem.with_suffix(".out"), stem.with_suffix(".err")
    with open(stdout, "wb") as out, open(stderr, "wb") as err:
        process = subprocess.Popen(
            [sys.executable, *map(str, program), "run", "--work-dir", str(folder), *map(str, arguments)],
            cwd=cwd,
            env=os.environ | _shared_gpu() | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    launcher = Launcher(process, folder.absolute(), stdout, stderr)
    try:
        yield launcher
    except AssertionError as error:
        error.add_note(f"the launcher's last words:\n{launcher.stderr[-4000:]}")
        raise
    finally:
        process.kill()
        process.wait()
        processes.kill_until_none(str(folder.absolute()))


@dataclass
class ControlStub:
    """A control server that takes everything and remembers it.

    Attributes:
        posts: (path, payload) of all that came, in order.
        refuse: Paths that are answered 404.
    """

    folder: Path
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)
    server: ThreadingHTTPServer | None = None

    def to(self, path: str) -> list[dict[str, Any]]:
        """Returns the payloads that came to ``path``."""
        return [payload for where, payload in list(self.posts) if where == path]

    def stop(self) -> None:
        """Stops answering: from now on nobody can reach it."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@contextlib.contextmanager
def control_stub(folder: Path) -> Iterator[ControlStub]:
    """Serves a control stub, with ``control.json`` in ``folder``."""
    stub = ControlStub(folder)
    key = secrets.token_bytes(16)
    verifier = Verifier(key)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            verifier.verify("POST", self.path, self.headers, body)  # type: ignore[arg-type]
            status = 404 if self.path in stub.refuse or stub.server is None else 200
            if status == 200:
                stub.posts.append((self.path, json.loads(body)))
            self.send_response(status)
            self.send_header(ANSWER_HEADER, verifier.sign_answer(self.headers[SIGNATURE_HEADER], status, b"{}"))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = stub.server is None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    stub.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.server.daemon_threads = True
    thread = threading.Thread(target=stub.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    port = stub.server.server_address[1]
    document = {"v": 1, "url": f"http://127.0.0.1:{port}", "store": "127.0.0.1:29555", "key": key.hex(), "term": 1}
    write_json(folder / "control.json", document, mode=0o600)
    try:
        yield stub
    finally:
        stub.stop()
        thread.join()


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Sends what Ctrl-C sends."""
    process.send_signal(signal.SIGINT)
