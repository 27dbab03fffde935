"""Groups beside a child that the script forks, and where no thread can be started."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys, threading
import torch
from torch.distributed import HashStore
from elastic_launcher.torch.collectives.group import group_from_store

store, groups = HashStore(), {}

def join(rank):
    groups[rank] = group_from_store(store, "group", rank, 2, 30.0, torch.device("cpu"))

ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
received = torch.zeros(3)
work = groups[0].start_recv(received, 1, 5)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
groups[1].send(torch.ones(3), 0, 5)
work.wait(30)
print(received.tolist(), flush=True)
"""
NO_THREADS = """
def start(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = start
"""
CLOSE = """
for group in groups.values():
    group.close()
"""


def test_a_forked_child_cuts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT + CLOSE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0, 1.0]\n"), done.stderr


def test_a_group_ends_where_no_thread_can_be_started() -> None:
    """As while Python 3.12 and later end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + NO_THREADS + CLOSE], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
