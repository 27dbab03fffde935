"""Sends a node's heartbeats and messages to the coordinator, in order, from one thread."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.contact import Contact
from elastic_launcher.control.messages import decode
from elastic_launcher.control.requests import Heartbeat, HeartbeatAnswer, NodeMessage, Notice

HEARTBEAT = 2.0
"""Seconds between heartbeats."""
RETRY = 0.25
"""Seconds, jittered, before the next try when the coordinator could not be reached."""
STALL = 1.0
"""Seconds between two looks at the silence, of which there are many a second: more, and this process stood still."""


class Outbox:
    """Delivers messages and heartbeats until it is closed.

    A message that can't be delivered is tried again, before all others, for as long as the outbox lives; one that the
    coordinator refuses is dropped, since it would be refused again.

    Args:
        first_member: Of the node's ranks, sent with all messages: it identifies the node's pod.
        cpu: Returns the seconds of CPU that each of these members has used so far.

    Attributes:
        must_leave: Whether the coordinator has answered that this node has to end its workers and leave.
    """

    def __init__(
        self,
        client: ControlClient,
        node: int,
        pid: int,
        first_member: int,
        cpu: Callable[[Collection[int]], Mapping[int, float]] = lambda members: {},
    ) -> None:
        self._client = client
        self._node = node
        self._pid = pid
        self._first_member = first_member
        self._cpu = cpu
        self._asked: tuple[int, ...] = ()
        self._waiting: deque[tuple[float, NodeMessage]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._notices = 0  # sent with each heartbeat: a new coordinator knows of none
        self._contact = Contact(STALL)
        self.must_leave = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Starts the thread; the first heartbeat goes out at once."""
        self._thread.start()

    def put(self, message: NodeMessage) -> None:
        """Has a message delivered."""
        with self._changed:
            self._notices += isinstance(message, Notice)
            self._waiting.append((time.monotonic(), message))
            self._changed.notify()

    def silence(self) -> float:
        """Returns how many seconds ago the coordinator last took something; asked again and again."""
        return self._contact.silence()

    def holds(self, kind: type[NodeMessage]) -> bool:
        """Returns whether a message of a kind has not been delivered yet."""
        with self._changed:
            return any(isinstance(message, kind) for _, message in self._waiting)

    def oldest(self, kind: type[NodeMessage]) -> float:
        """Returns how many seconds the oldest message of a kind has been waiting; 0 when none is."""
        with self._changed:
            sent = [since for since, message in self._waiting if isinstance(message, kind)]
        return time.monotonic() - min(sent) if sent else 0.0

    def close(self, patience: float) -> None:
        """Delivers what is waiting, for ``patience`` seconds at most, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(patience)
        self._client.close()

    def _run(self) -> None:
        beat = 0.0
        while True:
            with self._changed:
                if not self._waiting and not self._closed:
                    self._changed.wait(max(0.0, beat - time.monotonic()))
                message = self._waiting[0][1] if self._waiting else None
                if message is None and self._closed:
                    return
            if message is not None:
                if self._deliver(message):
                    with self._changed:
                        self._waiting.popleft()
            elif time.monotonic() >= beat:
                asked = self._asked
                if self._deliver(self._heartbeat()):  # a new question is answered at once
                    beat = time.monotonic() + (HEARTBEAT if self._asked == asked else 0.0)

    def _heartbeat(self) -> Heartbeat:
        beat = Heartbeat(pid=self._pid, notices=self._notices)
        return replace(beat, cpu=self._cpu(self._asked)) if self._asked else beat

    def _deliver(self, message: NodeMessage) -> bool:
        """Returns whether a message needs no further try."""
        told = replace(message, first_member=self._first_member)
        try:
            content = self._client.post(f"/v1/nodes/{self._node}/{message.path()}", told)
        except ControlUnreachable:
            with self._changed:  # close() ends the pause
                self._changed.wait(RETRY * random.uniform(0.5, 1.5))
            return False
        except ControlRefused as error:  # no contact: a coordinator that does not know this node has no use for it
            print(f"agent of node {self._node}: {message.path()} refused: {error}", flush=True)
            return True
        self._contact.hear()
        if isinstance(message, Heartbeat):
            answer = decode(content, HeartbeatAnswer, "heartbeat")
            self.must_leave = self.must_leave or answer.leave
            self._asked = answer.about
        return True
