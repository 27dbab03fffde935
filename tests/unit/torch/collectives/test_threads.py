"""A thread that is inside torch when the script ends does not abort the process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, threading, time
from torch.distributed import TCPStore
from elastic_launcher.torch.collectives import threads

store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
ending = threading.Event()

def look():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if ending.is_set():
            until = min(until, time.monotonic() + 0.2)
        store.check(["never"])  # gives up the GIL in C++, and takes it back there
    print("ended", flush=True)

threads.start_thread("look", look)
still = threads.start_thread("still", threading.Event().wait)
assert not threads.have_ended("still", 0)
still.is_given_up = True
assert threads.have_ended("still", 60)
atexit.register(ending.set)
"""


def test_python_ends_after_what_is_inside_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
