"""A thread that is inside torch when the script ends does not abort the process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, threading
from torch.distributed import TCPStore
from elastic_launcher.torch import threads

store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
over = threading.Event()

def look():
    while not over.is_set():
        store.check(["never"])  # gives up the GIL in C++, and takes it back there
    print("ended", flush=True)

threads.start_thread("look", look)
atexit.register(threading.Timer(0.2, over.set).start)
"""


def test_python_ends_after_what_is_inside_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
