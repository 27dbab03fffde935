"""Collects the members' introductions at the start of a takeover, and holds other requests until it is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NoReturn

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Report
from elastic_launcher.control.requests import Heartbeat, HeartbeatAnswer, NodeMessage, Notice, Welcome
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.api.handlers import JobHandlers

LOOK_SECONDS = 0.05  # between looks at who has ended meanwhile
NOT_YET = "the coordinator is taking over the job and collects its members' state"


class NotYetError(Exception):
    """The coordinator can't answer yet; whoever asks is to ask again."""


@dataclass(eq=False)
class Rejoin:
    """Answers in place of a job's handlers until a takeover is complete.

    Args:
        hold: Keeps a held message for after the takeover.
        superseded: Returns whether a member was of a pod that its node's queue has taken back.
    """

    handlers: JobHandlers
    hold: Callable[[Callable[[], object]], None]
    superseded: Callable[[int], bool]
    introductions: dict[int, Introduction] = field(default_factory=dict, init=False)

    async def wait_for(self, missing: Callable[[Collection[int]], bool], timeout: float) -> None:
        """Waits, ``timeout`` seconds at most, until ``missing`` says of those introduced that nobody is missing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while missing(self.introductions.keys()):
                    await asyncio.sleep(LOOK_SECONDS)

    def _take_later(self, take: Callable[[], object]) -> None:
        def take_it() -> None:
            with contextlib.suppress(LookupError):  # it is about a node that is gone
                take()

        self.hold(take_it)

    def introduce(self, member: int, introduction: Introduction) -> Welcome:
        """Takes a member's introduction."""
        if self.superseded(member):
            raise LookupError(f"member {member} is not wanted any more")
        self.introductions[member] = introduction
        return self.handlers.welcome()

    def report(self, member: int, report: Report) -> None:
        """Keeps a member's report."""

        def take() -> None:
            self.handlers.hear(member)
            self.handlers.report(member, report)

        self._take_later(take)

    def hear(self, member: int, vitals: Vitals | None = None) -> None:
        """Nobody is given up yet."""

    def is_superseded(self, node: int, member: int) -> bool:
        """Returns whether a member was of a pod of the node that its queue has taken back."""
        return self.superseded(member)

    def heartbeat(self, node: int, told: Heartbeat) -> HeartbeatAnswer:
        """Holds a node's notice; no member is given up yet."""
        if told.notices:
            self.take(node, Notice())  # the rest of it would be out of date by then
        return HeartbeatAnswer()

    def take(self, node: int, message: NodeMessage) -> None:
        """Holds a message of a node's agent."""
        self._take_later(lambda: self.handlers.take(node, message))

    def _not_yet(self, *request: object) -> NoReturn:
        """Has whoever asks ask again."""
        raise NotYetError(NOT_YET)

    join = register = save = stop = status = _not_yet
