"""A coordinator that has come back listens first: who lives tells it where the job stands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Message
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.coordinator.api.server import Handlers, NotYetError

LOOK_SECONDS = 0.05  # between looks at who has ended meanwhile


class Rejoin:
    """Answers members and agents until the coordinator knows where its job stands (see `Handlers`).

    Args:
        welcome: Returns what a member needs to go on.
        superseded: Returns whether a member was of a pod that its node's queue has taken back.

    Attributes:
        introductions: Of members.
    """

    def __init__(self, welcome: Callable[[], dict[str, Any]], superseded: Callable[[int], bool]) -> None:
        self._welcome = welcome
        self._superseded = superseded
        self.introductions: dict[int, Introduction] = {}
        self._held: list[Callable[[Handlers], None]] = []

    async def wait_for(self, missing: Callable[[Collection[int]], bool], timeout: float) -> None:
        """Waits until nobody is missing any more, a bounded time.

        Args:
            missing: Returns, for the members that have introduced themselves, whether others are still to come.
            timeout: Seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while missing(self.introductions.keys()):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return

    def hand_over(self, desk: Handlers) -> None:
        """Has another desk take what was said in the meantime."""
        for take in self._held:
            with contextlib.suppress(LookupError):  # it is about a node that is gone
                take(desk)
        self._held.clear()

    def hold(self, take: Callable[[Handlers], None]) -> None:
        """Keeps something for later."""
        self._held.append(take)

    def introduce(self, member: int, introduction: Introduction) -> dict[str, Any]:
        """Takes where a member stands."""
        if self._superseded(member):
            raise LookupError(f"member {member} is not wanted any more")
        self.introductions[member] = introduction
        return self._welcome()

    def report(self, member: int, report: Message) -> None:
        """Keeps a member's report."""

        def take(desk: Handlers) -> None:
            desk.hear(member)
            desk.report(member, report)

        self.hold(take)

    def hear(self, member: int, vitals: Vitals | None = None) -> None:
        """Nobody is given up yet."""

    def register(self, node: int, pod: str) -> int:
        """Has a new pod ask again."""
        raise NotYetError("the coordinator has just come back and learns where the job stands")

    def is_superseded(self, node: int, member: int) -> bool:
        """Returns whether a member was of a pod of the node that its queue has taken back."""
        return self._superseded(member)

    def node_heartbeat(self, node: int, pid: int, notices: int = 0) -> bool:
        """Keeps that a node was told to go."""

        def take(desk: Handlers) -> None:
            desk.node_heartbeat(node, pid, notices)

        if notices:
            self.hold(take)
        return False

    def ask_about(self, node: int, cpu: Mapping[int, float]) -> list[int]:
        """Nobody is given up yet."""
        return []

    def node_life(self, node: int, life: dict[str, Any]) -> None:
        """Keeps what happened to a node's workers."""
        self.hold(lambda desk: desk.node_life(node, life))

    def node_notice(self, node: int, source: str) -> None:
        """Keeps a notice."""
        self.hold(lambda desk: desk.node_notice(node, source))

    def node_unfit(self, node: int, message: str) -> None:
        """Keeps what a node's machine lacks."""
        self.hold(lambda desk: desk.node_unfit(node, message))

    def rank_ended(self, node: int, local_rank: int, exit_code: int | None, signal: int | None) -> None:
        """Keeps how a process ended."""
        self.hold(lambda desk: desk.rank_ended(node, local_rank, exit_code, signal))

    def join(self, member: int, pid: int, version: str) -> dict[str, Any]:
        """Has a new member ask again."""
        raise NotYetError("the coordinator has just come back and learns where the job stands")

    def save(self) -> dict[str, Any]:
        """Has who wants a checkpoint ask again."""
        raise NotYetError("the coordinator has just come back and learns where the job stands")

    def stop(self) -> dict[str, Any]:
        """Has who wants the job stopped ask again."""
        raise NotYetError("the coordinator has just come back and learns where the job stands")

    def status(self) -> dict[str, Any]:
        """Has who wants to know ask again."""
        raise NotYetError("the coordinator has just come back and learns where the job stands")
