"""Finds the checkpoint for a restart within one launch, and keeps numbers from being used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.observations import ResumePointFound
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin
from elastic_launcher.host.retry import Retry
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, Past


class CannotRestart(Exception):
    """The checkpoint of a restart can't be read; the message has the reason."""


@dataclass(eq=False)
class ResumeSearch:
    """Looks for the checkpoint to resume from, in a thread, since it reads all of it, and reports it.

    Args:
        observe: Takes the checkpoint that was found.
        warn: Takes errors that are retried.

    Attributes:
        origin: What the job resumed from last.
    """

    config: JobConfig
    layout: Layout
    origin: Origin
    observe: Callable[[ResumePointFound], None]
    warn: Callable[[str], None]
    monotonic: Callable[[], float]
    _ended: asyncio.Queue[State] = field(default_factory=asyncio.Queue, init=False)

    def put(self, state: State) -> None:
        """Requests a search for a job in ``state``, all of whose nodes are gone."""
        self._ended.put_nowait(state)

    async def run(self) -> None:
        """Searches at each request, until it is cancelled.

        Raises:
            CannotRestart: See `look`.
        """
        while True:
            first, refused = await self.look(await self._ended.get())
            self.observe(ResumePointFound(self.monotonic(), first, refused))

    async def look(self, state: State) -> tuple[State, tuple[str, ...]]:
        """Returns the first state of a restart after ``state``, and why checkpoints were refused.

        Raises:
            CannotRestart: If no checkpoint could be read for ``--orphan-timeout``.
        """
        said: list[str] = []
        past = used_up(state, self.origin.past)

        def look() -> Origin:
            return find_origin(self.config, self.layout, past, said.append)

        try:
            retry = Retry(ConfigError, self.config.orphan_timeout, self.warn, self.monotonic)
            self.origin = await retry.call_in_thread(look)
        except ConfigError as error:
            raise CannotRestart(f"all nodes are gone, and the job can't restart: {error}") from error
        refused = tuple(dict.fromkeys(line for line in said if line.endswith("is used instead")))
        return self.origin.first_state(self.config, state.rules.store), refused


def used_up(state: State, past: Past) -> Past:
    """Returns the numbers that a job has used until ``state``, in a launch that began with ``past``.

    A generation that was ordered counts, too: members that are cut off may have completed it, and write checkpoints.
    """
    rules = state.rules
    ordered = state.formations > state.group_formation
    return Past(
        past.term,
        first_node=rules.first_node + len(state.nodes),
        first_member=state.next_member,
        generations=rules.generations_before + state.generation + ordered,
    )
