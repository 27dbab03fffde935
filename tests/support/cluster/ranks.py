"""The ranks of a job in pods: the processes that each had, and signals to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tests.support.cluster.stage import LONG, Stage
from tests.support.ledgers import read_ledgers

RANKS = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    argv = (process / "cmdline").read_bytes().split(b"\\0")
    if b"-u" in argv and b"--no-python" not in argv:
        os.kill(int(process.name), signal.{signal})
"""


def send_ranks(stage: Stage, node: int, name: str) -> Callable[[], None]:
    """Sends a signal to the ranks of a node, and not to its agent; returns what has them go on."""
    pod = stage.nodes()[node]["metadata"]["name"]

    def send(name: str) -> None:
        code = RANKS.format(signal=name)
        stage.kubectl("exec", pod, f"--namespace={stage.space}", "--", f"{sys.prefix}/bin/python", "-c", code)

    send(name)
    return lambda: send("SIGCONT")


def adopted(stage: Stage, term: int) -> dict[str, Any]:
    """Waits until a launcher has come back, and training goes on; returns what it said."""
    found = stage.events.wait("coordinator_adopted", lambda event: event["term"] == term, LONG)
    stage.events.wait("progress", lambda event: event["step"] > found["step"] + 1, LONG)
    return found


def processes(stage: Stage) -> dict[int, set[int]]:
    """Returns the processes that each member has had: one that restarted as another has a ledger of its own."""
    found: dict[int, set[int]] = {}
    for rows in read_ledgers(stage.folder):
        found.setdefault(rows[0]["member"], set()).add(rows[0]["pid"])
    return found
