"""What answers for the coordinator in tests of its API, and keeps what it was told."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Report
from elastic_launcher.control.requests import Heartbeat, HeartbeatAnswer, Join, NodeMessage, Standing, Welcome
from elastic_launcher.control.vitals import Vitals

KEY = bytes(range(32))
SUPERSEDED = 7
"""The first member of a pod that the node's queue has taken back."""


class Desk:
    """Answers for members 1 and 2 and node 1, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.heard: list[int] = []

    def join(self, member: int, asked: Join) -> Standing:
        self.hear(member)
        self.told.append(("join", member, asked.pid, asked.version))
        return Standing(epoch=1, step=40, begun=True)

    def welcome(self) -> Welcome:
        return Welcome("", 1)

    def introduce(self, member: int, introduction: Introduction) -> Welcome:
        self.told.append(("introduce", member, introduction))
        return self.welcome()

    def report(self, member: int, report: Report) -> None:
        self.told.append((member, report))

    def hear(self, member: int, vitals: Vitals | None = None) -> None:
        if member not in (1, 2):
            raise LookupError(f"there is no member {member}")
        self.heard.append(member)

    def register(self, node: int, pod: str) -> int:
        return 5 if pod == "second" else 1

    def is_superseded(self, node: int, member: int) -> bool:
        return member == SUPERSEDED

    def heartbeat(self, node: int, told: Heartbeat) -> HeartbeatAnswer:
        self.told.append(("heartbeat", node, told.pid))
        return HeartbeatAnswer()

    def take(self, node: int, message: NodeMessage) -> None:
        told = {name: value for name, value in asdict(message).items() if name != "first_member"}
        self.told.append((message.path(), node, *told.values()))

    def status(self) -> dict[str, Any]:
        return {"v": 1, "step": 40}
