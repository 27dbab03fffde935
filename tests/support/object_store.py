"""An object store that speaks S3, on this machine, in a process of its own that can be ended and started again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.launches import until

BUCKET = "models"
LOOPBACK = "127.0.0.1"


class ObjectStore:
    """A store, with one bucket.

    Args:
        folder: Where it keeps what it is given: a bucket is a folder there, an object a file.
        host: The address of this machine at which it answers.
    """

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self.host = host
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.port: int = probe.getsockname()[1]
        self.bucket = folder / BUCKET
        self.bucket.mkdir(parents=True)
        self.url = f"s3://{BUCKET}/jobs/digits"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to know."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DISABLE_BULK_DELETE": "true",  # which this store does not know
        }

    def start(self) -> None:
        """Begins to answer."""
        where = ("--host", self.host, "--port", str(self.port))
        command = [sys.executable, "-m", "localbucket", str(self.bucket.parent), *where]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers, f"the object store at port {self.port} answers")

    def stop(self) -> None:
        """Answers no more; what it was given stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
            return True
        return False


@contextlib.contextmanager
def object_store(folder: Path, host: str = LOOPBACK) -> Iterator[ObjectStore]:
    """Runs a store, and has this process and its children reach it."""
    store = ObjectStore(folder, host)
    before = dict(os.environ)
    os.environ.update(store.environment)
    store.start()
    try:
        yield store
    finally:
        store.stop()
        os.environ.clear()
        os.environ.update(before)
