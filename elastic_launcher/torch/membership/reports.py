"""Sends this member's reports to the coordinator, in order, from a thread of its own."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from typing import Any

from elastic_launcher.control.messages import Report, encode
from elastic_launcher.torch.membership.connection import RETRY_SECONDS, Connection, complain

FLUSH_SECONDS = 3.0  # for the last reports of a process that ends


class Reports:
    """Tells the coordinator what happened, until it has taken or refused it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.Queue[dict[str, Any] | threading.Event] = queue.Queue()
        self._numbers = itertools.count(1)

    def put(self, report: Report) -> None:
        """Queues a report, which is sent soon."""
        encoded = encode(report)
        self._connection.rejoin_state.note_report(report)
        self._waiting.put({**encoded, "n": next(self._numbers)})

    def flush(self, longest: float = math.inf) -> None:
        """Waits until all reports are sent, ``longest`` seconds at most, also for a coordinator that is away."""
        done, until, contact = threading.Event(), time.monotonic() + longest, self._connection.contact
        self._waiting.put(done)
        while not done.wait(FLUSH_SECONDS) and contact.silence() > FLUSH_SECONDS and time.monotonic() < until:
            pass

    def send(self) -> None:
        """Does so for as long as the process lives."""
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._waiting.get_nowait())
            told = [one for one in batch if not isinstance(one, threading.Event)]
            while told:
                try:
                    if self._connection.send(told):
                        break
                except Exception as error:  # noqa: BLE001 - no thread can be started, say
                    complain(f"a report could not be sent ({type(error).__name__}: {error}); that is tried again")
                    time.sleep(RETRY_SECONDS)
            for one in batch:
                if isinstance(one, threading.Event):
                    one.set()
