"""Sends a node's heartbeats and messages to the coordinator, in order, from one thread."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.contact import Contact

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
        client: Signs and sends as this node.
        node: The node's number.
        pid: The agent's process id, sent with each heartbeat.
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
        self._asked: list[int] = []
        self._waiting: deque[tuple[float, str, dict[str, Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._notices = 0  # told with each heartbeat: a coordinator that comes back knows of none
        self._contact = Contact(STALL)
        self.must_leave = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Starts the thread; the first heartbeat goes out at once."""
        self._thread.start()

    def put(self, what: str, payload: dict[str, Any]) -> None:
        """Sends ``payload`` to the endpoint ``what`` of this node."""
        with self._changed:
            self._notices += what == "notice"
            self._waiting.append((time.monotonic(), what, payload))
            self._changed.notify()

    def silence(self) -> float:
        """Returns how many seconds ago the coordinator last took something; asked again and again."""
        return self._contact.silence()

    def holds(self, what: str) -> bool:
        """Returns whether a message to the endpoint ``what`` has not been delivered yet."""
        with self._changed:
            return any(endpoint == what for _, endpoint, _ in self._waiting)

    def oldest(self, what: str) -> float:
        """Returns how many seconds the oldest message to ``what`` has been waiting; 0 when none is."""
        with self._changed:
            sent = [since for since, endpoint, _ in self._waiting if endpoint == what]
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
                message = self._waiting[0] if self._waiting else None
                if message is None and self._closed:
                    return
            if message is not None:
                if self._deliver(message[1], message[2]):
                    with self._changed:
                        self._waiting.popleft()
            elif time.monotonic() >= beat:
                asked = self._asked
                if self._deliver("heartbeat", self._heartbeat()):  # what is asked anew is answered at once
                    beat = time.monotonic() + (HEARTBEAT if self._asked == asked else 0.0)

    def _heartbeat(self) -> dict[str, Any]:
        told: dict[str, Any] = {"pid": self._pid, "notices": self._notices}
        return {**told, "cpu": self._cpu(self._asked)} if self._asked else told

    def _deliver(self, what: str, payload: dict[str, Any]) -> bool:
        """Returns whether that message needs no further try."""
        try:
            answer = self._client.post(
                f"/v1/nodes/{self._node}/{what}", {**payload, "first_member": self._first_member}
            )
        except ControlUnreachable:
            with self._changed:  # close() ends the pause
                self._changed.wait(RETRY * random.uniform(0.5, 1.5))
            return False
        except ControlRefused as error:  # no contact: a coordinator that does not know this node has no use for it
            print(f"agent of node {self._node}: {what} refused: {error}", flush=True)
            return True
        self._contact.hear()
        self.must_leave = self.must_leave or bool(answer.get("leave"))
        if what == "heartbeat":
            self._asked = [int(member) for member in answer.get("about", ())]
        return True
