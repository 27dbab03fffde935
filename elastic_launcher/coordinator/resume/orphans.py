"""Takes over the nodes that an earlier launcher has left running."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from elastic_launcher.config import JobConfig
from elastic_launcher.control.messages import Saved
from elastic_launcher.coordinator.api.rejoin import Rejoin
from elastic_launcher.coordinator.model.actions import Action
from elastic_launcher.coordinator.model.event_replay import earlier_wait, read_record
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.model.state import Rules, State
from elastic_launcher.coordinator.resume.resume_point import Origin, last_saved, noted_manifest, noted_origin
from elastic_launcher.coordinator.rules.checkpoint_restart import restart_if_curable
from elastic_launcher.coordinator.rules.takeover import Leftovers, Numbers, adopt, expected, runs_on
from elastic_launcher.coordinator.runtime.failure_excerpt import read_exit
from elastic_launcher.events import Event
from elastic_launcher.workdir import Layout, Past


class OrphanNodes(Protocol):
    """The nodes that an earlier launcher has left, on this machine or in a cluster."""

    def living(self) -> Collection[int]:
        """Returns the numbers of those that still live, without waiting."""

    def take(self) -> Collection[int]:
        """Hands them to the engine, which then reports their ends, and ends what is left of others; returns them."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A job after a takeover.

    Attributes:
        state: Its state.
        actions: The actions that are due at once.
        heard: Members that are known to live.
        told: What the events have recorded of its nodes already.
        taken_seconds_ago: When a hint, or a notice that holds growth back, took a node last; None if none did.
    """

    state: State
    actions: tuple[Action, ...]
    heard: frozenset[int]
    told: frozenset[tuple[str, int]]
    taken_seconds_ago: float | None


@dataclass(eq=False)
class Takeover:
    """Takes over a job that runs without a coordinator.

    Args:
        past: The numbers that earlier runs have used.
        run: The events of the run that continues.
        nodes: Its nodes.
        resume: Ends the nodes, and returns what the job resumes from instead.
    """

    config: JobConfig
    layout: Layout
    past: Past
    run: Sequence[Event]
    nodes: OrphanNodes
    resume: Callable[[], Origin]

    def __post_init__(self) -> None:
        self.record = read_record(self.run)

    def origin(self) -> Origin:
        """Returns what the continued run began with, which its new members get too."""
        noted = noted_origin(self.layout)
        folder = Path(noted) if noted else None
        return Origin(self.past, folder, noted_manifest(self.layout), waits=self._waits())

    async def gather(self, gathering: Rejoin) -> Leftovers | None:
        """Waits until living members have reported their state; returns None if there is no training to take over."""

        def missing(introduced: Collection[int]) -> bool:
            return bool(expected(self._leftovers(gathering), self.config.nproc_per_node))

        def idle(introduced: Collection[int]) -> bool:
            left = self._leftovers(gathering)
            return bool(left.nodes) and missing(introduced) and not runs_on(left, self.config.nproc_per_node)

        await gathering.wait_for(missing, self.config.heartbeat_timeout)
        await gathering.wait_for(idle, self.config.orphan_timeout)  # the only holder of the state may be busy
        left = self._leftovers(gathering)
        begins = self.record.generation is None and not any(one.current for one in left.introductions.values())
        if begins and noted_origin(self.layout) is None:
            return None  # no member has the state yet, and the job's start is not known
        return left if runs_on(left, self.config.nproc_per_node) else None

    def take_over(self, left: Leftovers, first: State, now: float) -> TakenOver:
        """Returns the job as it continues, or restarts where no member is left that holds its state.

        ``first`` is the state of the run at its start.
        """
        rules = replace(first.rules, waits=self._waits())
        first = replace(first, rules=rules, saved=self._saved() or first.saved)
        found = adopt(first, left, now, self.config.heartbeat_timeout)
        state, actions = restart_if_curable(*found, now)
        return TakenOver(
            state,
            actions,
            heard=frozenset({*left.introductions, *state.survivors()}),
            told=self.record.told,
            taken_seconds_ago=self._taken_seconds_ago(rules),
        )

    def _saved(self) -> Saved | None:
        """Returns the last checkpoint by its pointer, or by the events where the pointer can't be read here."""
        if self.config.checkpoint_dir is None:
            with contextlib.suppress(OSError):
                return last_saved(self.config, self.layout)
        told = [event for event in self.run if event.kind == "checkpoint_saved"]
        return Saved(told[-1]["step"], told[-1]["path"], 0, 0.0, 0.0) if told else None

    def _taken_seconds_ago(self, rules: Rules) -> float | None:
        """Returns when growth was last held back: not by a notice, where a node that gets one is replaced at once."""
        noticed_at = None if rules.replaces_noticed else self.record.noticed_at
        taken_at = max((at for at in (self.record.shrunk_at, noticed_at) if at is not None), default=None)
        return None if taken_at is None else max(0.0, time.time() - taken_at)

    def _waits(self) -> EarlierWait | None:
        return earlier_wait(self.run, time.time())

    def _leftovers(self, gathering: Rejoin) -> Leftovers:
        introductions = dict(gathering.introductions)
        return Leftovers([*self.nodes.living()], introductions, self._exits(), self.record, self._numbers)

    @property
    def _numbers(self) -> Numbers:
        past = self.past
        return Numbers(past.first_node, past.first_member, past.generations, self.record.members, self.record.nodes)

    def _exits(self) -> dict[tuple[int, int], Exit]:
        numbers, size = self._numbers, self.config.nproc_per_node
        members = {
            (node, place): member
            for node in range(self.record.first_node, self.past.first_node)
            for place, member in enumerate(numbers.members_of(node, size))
        }
        ended = {place: read_exit(self.layout.exit_file(*place), member) for place, member in members.items()}
        return {place: one for place, one in ended.items() if one is not None}
