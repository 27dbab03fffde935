"""Follows the quota hints and sets the number of nodes: the I/O around the pure rules of ``hints``."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.deadlines import RECLAIM_SECONDS
from elastic_launcher.coordinator.model.event_replay import LastHint
from elastic_launcher.coordinator.model.state import Target
from elastic_launcher.hints import (
    Debounce,
    Demand,
    HintError,
    HintPolicy,
    HintRead,
    HintSource,
    Resolution,
    most_samples,
    resolve,
)
from elastic_launcher.hints.document import DEFAULT_GROW_AFTER
from elastic_launcher.report.words import plural


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks of hints: monotonic seconds for waits, seconds since the epoch for the age of documents."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class HintFollower:
    """Reports the target at the start and whenever it changes.

    Args:
        job_id: The id by which hints match it.
        source: Where hints come from; None for a fixed target.
        on_target: Takes each new target, and why it is below the minimum.
        held: The hint that the job followed before this launch; None for a new job.
        tells_kinds: Whether nodes within the guarantee differ from those above it.
    """

    def __init__(
        self,
        config: JobConfig,
        job_id: str,
        source: HintSource | None,
        on_target: Callable[[Target, str], None],
        emit: Callable[..., None],
        clocks: Clocks,
        held: LastHint | None = None,
        tells_kinds: bool = False,
    ) -> None:
        self._config = config
        self._source = source
        self._on_target = on_target
        self._emit = emit
        self._clocks = clocks
        self._held = held
        self._tells_kinds = tells_kinds
        self._demand = Demand(
            {**config.match, "id": job_id},
            config.min_nodes,
            config.max_nodes,
            config.nproc_per_node,
            self._most_samples(None if held is None else held.most_samples),
            config.share,
        )
        self._policy = HintPolicy(source.name if source is not None else "")
        self._debounce = Debounce()
        self._current = 0
        self._runs = False
        self._reported: tuple[object, ...] | None = None
        self._announced: tuple[int | float | None, ...] | None = None
        self._wake: asyncio.Queue[HintRead | None] = asyncio.Queue()

    def resume(self, nodes: int, taken_seconds_ago: float | None) -> None:
        """Follows the hints of a job that runs already, with ``nodes`` as its target, instead of starting one.

        Growth waits from when a hint or a notice took a node last, if one did.
        """
        self._runs, self._current = True, nodes
        if taken_seconds_ago is not None:
            self._debounce = self._debounce.note_shrink(self._clocks.monotonic() - taken_seconds_ago)
        self._wake.put_nowait(None)

    async def watch(self) -> None:
        """Reads the source until it is cancelled; ends at once where there is none."""
        if self._source is not None:
            async for found in self._source.changes():
                self._wake.put_nowait(found)

    async def run(self) -> None:
        """Turns what is read into targets, until it is cancelled.

        Raises:
            HintError: If the hints can't be used at the start of a job that never began.
        """
        if not self._runs and self._source is None:
            self._set(self._config.max_nodes, "start", None)
        elif not self._runs:
            await self._start()
        await self._follow()

    async def _start(self) -> None:
        """Waits for hints that allow the minimum, for as long as the user or the hint says."""
        began = self._clocks.monotonic()
        waiting_since, known = 0.0, False
        while True:
            left = began + self._patience() - self._clocks.monotonic()
            try:
                async with asyncio.timeout(left if known else None):  # the first read comes at once
                    found = await self._wake.get()
            except TimeoutError:
                self._refuse_start()
                return
            if found is None:
                continue
            known = True
            kind, message = self._judge(found)
            unread = kind in ("rejected", "missing") and self._policy.document is None
            if unread and self._held is None:
                if kind == "missing" and not self._config.require_hints:
                    self._set(self._config.min_nodes, "start", None)
                    return
                raise HintError(message if kind == "rejected" else f"{message}; --require-hints asks for them")
            if unread and self._held_nodes():
                self._set(self._held_nodes(), "start", None)
                return
            resolution = self._resolve(starting=True)
            if resolution is None:
                continue  # by the last hint that was followed the job may not train
            self._announce(resolution, resolution.nodes)
            if resolution.nodes:
                if waiting_since:
                    self._emit("quota_back", seconds=round(self._clocks.monotonic() - waiting_since, 3))
                self._set(resolution.nodes, "start", resolution)
                return
            left = began + self._patience() - self._clocks.monotonic()
            if left <= 0:
                self._refuse_start()
                return
            if kind == "applied":
                too_few = self._too_few(resolution.allowed)
                waits = f"waiting for quota, without any process, up to {left:.0f} s: {too_few}"
                self._emit("quota_wait", message=waits)
                waiting_since = waiting_since or self._clocks.monotonic()

    def _refuse_start(self) -> None:
        resolution = self._resolve(starting=True)
        seconds = self._patience()
        waited = f" after {seconds:g} s" if seconds else ""
        longer = f"wait longer than {seconds:g} s with" if seconds else "wait with"
        advice = f"raise `allowed`, or {longer} --wait-for-quota SECONDS"
        allowed = resolution.allowed if resolution is not None else self._held.allowed if self._held else 0
        self._set(0, "start", resolution, f"{self._too_few(allowed)}{waited}; {advice}")

    def _patience(self) -> float:
        """Returns for how many seconds the job waits for quota at its start."""
        if self._config.wait_for_quota is not None:
            return self._config.wait_for_quota
        resolution = self._resolve(starting=True)
        return 0.0 if resolution is None or resolution.wait is None else resolution.wait

    def _held_nodes(self) -> int:
        """Returns how many nodes a job that has begun keeps while no hint can be read; 0 for too few."""
        assert self._held is not None
        least, nodes = self._config.min_nodes, self._held.nodes
        return least if nodes is None else min(nodes, self._config.max_nodes) if nodes >= least else 0

    def _too_few(self, allowed: int | None) -> str:
        nodes, size = self._config.min_nodes, self._config.nproc_per_node
        return (
            f"hints: {self._policy.name} allows {allowed} GPU{'' if allowed == 1 else 's'}, and the job needs at least "
            f"{nodes * size} ({plural(nodes, 'node')} of {size})"
        )

    async def _follow(self) -> None:
        """Follows the hints for as long as the job runs."""
        wake_at: float | None = None
        while True:
            patience = None if wake_at is None else max(0.0, wake_at - self._clocks.monotonic())
            found: HintRead | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    found = await self._wake.get()
            applied = found is not None and self._judge(found)[0] == "applied"
            wake_at = self._decide(applied)

    def _judge(self, found: HintRead) -> tuple[str, str]:
        self._policy, outcome = self._policy.read(found, self._clocks.wall())
        if outcome.kind in ("rejected", "older"):
            self._emit("hint_rejected", message=outcome.message + self._what_is_held())
        elif outcome.kind == "missing":
            follows = self._what_is_held() or self._what_follows()
            self._emit("hint_missing", message=outcome.message + follows)
        elif outcome.kind == "applied" and outcome.message:
            self._emit("warning", message=outcome.message)
        return outcome.kind, outcome.message

    def _what_is_held(self) -> str:
        """Returns the consequence of unusable hints for a job that had begun before this launch."""
        if self._policy.document is not None:
            return ""
        if self._runs:
            return f"; the running job keeps its size, {plural(self._current, 'node')}, until they can be used"
        if self._held is None:
            return ""
        nodes = self._held_nodes()
        if not nodes:
            return "; the job had begun, and by the last hint that it followed it may not go on"
        by = "its minimum" if self._held.nodes is None else "the last hint that it followed"
        return f"; the job had begun, and goes on by {by}, with {plural(nodes, 'node')}, until they can be used"

    def _what_follows(self) -> str:
        """Returns the consequence of missing hints for a job that never had any."""
        if self._policy.document is not None or self._config.require_hints:
            return ""
        return (
            f"; the job trains with its minimum, {plural(self._config.min_nodes, 'node')}, and follows the hints once "
            "they are there; --require-hints makes this an error"
        )

    def _resolve(self, *, starting: bool) -> Resolution | None:
        document = self._policy.document
        if document is None:
            return None
        return resolve(document, self._demand, now=self._clocks.wall(), starting=starting)

    def _decide(self, applied: bool) -> float | None:
        """Moves the target towards what the hints give; returns when to look again."""
        resolution = self._resolve(starting=False)
        if resolution is None:
            wanted, grow_after, allowed = self._config.max_nodes, DEFAULT_GROW_AFTER, None
            if self._source is not None:
                wanted = self._current  # without a document nothing changes
        else:
            grow_after, allowed = resolution.grow_after, resolution.allowed
            wanted = resolution.wanted(self._current)
        now = self._clocks.monotonic()
        self._debounce, target, wake_at = self._debounce.decide(
            wanted, self._current, now, grow_after=grow_after, allowed=allowed
        )
        if applied and resolution is not None:
            self._announce(resolution, target)
        message = ""
        if resolution is not None and target < self._config.min_nodes:
            message = self._too_few(resolution.allowed)
        self._set(target, "hint", resolution, message)
        return wake_at

    def _announce(self, resolution: Resolution, target: int) -> None:
        document = self._policy.document
        numbers = (resolution.guaranteed, resolution.allowed, resolution.limit, target)
        announced = (*numbers, resolution.stale, resolution.reclaim_by, resolution.wait)
        renewed, self._announced = announced == self._announced, announced
        self._emit(
            "hint_applied",
            hint_generation=document.generation if document is not None else None,
            guaranteed=resolution.guaranteed,
            allowed=resolution.allowed,
            limit=resolution.limit,
            target_nodes=target,
            source=self._policy.name,
            match=resolution.matched,
            stale=resolution.stale,
            reclaim_by=resolution.reclaim_by,
            **({} if resolution.wait is None else {"wait_seconds": resolution.wait}),
            **({"renewed": True} if renewed else {}),
        )

    def _set(self, nodes: int, cause: str, resolution: Resolution | None, message: str = "") -> None:
        self._current = nodes
        numbers: tuple[int | None, int | None, int | None] = (None, None, None)
        reclaim_by = wait = None
        leave: frozenset[int] = frozenset()
        if resolution is not None:
            numbers = (resolution.guaranteed, resolution.allowed, resolution.limit)
            reclaim_by, leave = resolution.reclaim_by, resolution.leave
            wait = resolution.wait if self._config.wait_for_quota is None else None
        reported = (nodes, *numbers, reclaim_by, wait, leave)
        if self._reported != reported:
            self._reported = reported
            by, within = self._monotonic_at(reclaim_by), self._within(numbers[0])
            self._on_target(Target(nodes, cause, *numbers, by=by, within=within, wait=wait, leave=leave), message)

    def _within(self, guaranteed: int | None) -> int | None:
        """Returns how many nodes are within a guarantee, in GPUs."""
        return None if guaranteed is None or not self._tells_kinds else guaranteed // self._config.nproc_per_node

    def _monotonic_at(self, reclaim_by: float | None) -> float:
        """Returns when nodes may be killed, by the monotonic clock."""
        if reclaim_by is None:
            return math.inf
        return self._clocks.monotonic() + max(reclaim_by - self._clocks.wall(), RECLAIM_SECONDS)

    def note_most_samples(self, samples: int) -> None:
        """Takes how many samples the job's global batch may have, by its own report: so many ranks are of use."""
        most = self._most_samples(samples)
        if most != self._demand.global_batch_size:
            self._demand = replace(self._demand, global_batch_size=most)
            self._wake.put_nowait(None)

    def _most_samples(self, reported: int | None) -> int | None:
        return most_samples(self._config.global_batch_size, self._config.autoscale_batch_size, reported)

    def note_notice(self, nodes: int) -> None:
        """Lowers the target after a notice, and delays growth.

        Args:
            nodes: The target that is left.
        """
        resolution = self._resolve(starting=False)
        allowed = None if resolution is None else resolution.allowed
        self._debounce = self._debounce.note_notice(self._clocks.monotonic(), allowed)
        self._current = nodes
        if self._reported is not None:
            self._reported = (nodes, *self._reported[1:])
        self._wake.put_nowait(None)
