"""Lets the processes of a machine in one after the other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator

from elastic_launcher import variables
from elastic_launcher.torch.session import Session


@contextlib.contextmanager
def first_on_node(session: Session) -> Iterator[None]:
    """Runs its block in one process of this machine at a time; see `Job.first_on_node`."""
    folder = os.environ.get(variables.WORK_DIR) or tempfile.gettempdir()
    path = os.path.join(folder, f".elastic-first-on-node-{os.getuid()}.lock")
    session.check_unlocked("job.first_on_node")
    with open(path, "a") as lock:
        with session.pace.aside("in job.first_on_node"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        session.locked = True
        try:
            yield
        finally:
            session.locked = False
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: what was forked inside holds the file too
