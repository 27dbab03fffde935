"""Has a job begin again within one launch, from its newest checkpoint: numbers that were used are not used again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.observations import ResumePointFound
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin
from elastic_launcher.host.retry import Retry
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, Past


class CannotRestart(Exception):
    """What the job was to go on from can't be had; the message says why."""


class ResumeSearch:
    """Looks for what the job goes on from, in a thread, since all of it is read, and tells.

    Args:
        config: The job.
        layout: Its work directory.
        origin: What this launch began with.
        observe: Takes what was found.
        warn: Takes what went wrong, and is tried again.
        monotonic: The clock of observations.

    Attributes:
        origin: What the job went on from last.
    """

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        origin: Origin,
        observe: Callable[[ResumePointFound], None],
        warn: Callable[[str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.origin = origin
        self._config = config
        self._layout = layout
        self._observe = observe
        self._warn = warn
        self._monotonic = monotonic
        self._ended: asyncio.Queue[State] = asyncio.Queue()

    def put(self, state: State) -> None:
        """Has the job begin again after ``state``: all its nodes are gone."""
        self._ended.put_nowait(state)

    async def run(self) -> None:
        """Does so whenever it is asked for, for ever.

        Raises:
            CannotRestart: See `look`.
        """
        while True:
            first, refused = await self.look(await self._ended.get())
            self._observe(ResumePointFound(self._monotonic(), first, refused))

    async def look(self, state: State) -> tuple[State, tuple[str, ...]]:
        """Returns what a job knows that begins again after ``state``, and why checkpoints were refused.

        Raises:
            CannotRestart: If for ``--orphan-timeout`` no checkpoint could be had.
        """
        said: list[str] = []
        past = used_up(state, self.origin.past)

        def look() -> Origin:
            return find_origin(self._config, self._layout, past, said.append)

        try:
            retry = Retry(ConfigError, self._config.orphan_timeout, self._warn, self._monotonic)
            self.origin = await retry.call_in_thread(look)
        except ConfigError as error:
            raise CannotRestart(f"all nodes are gone, and the job can't begin again: {error}") from error
        refused = tuple(dict.fromkeys(line for line in said if line.endswith("is used instead")))
        return self.origin.first_state(self._config, state.rules.store), refused


def used_up(state: State, past: Past) -> Past:
    """Returns what a job has used up until ``state``, in a launch that began with ``past``.

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
