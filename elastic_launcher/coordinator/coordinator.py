"""The job's one authority: it feeds what happens into ``decide``, one thing at a time, and does what that asks for."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.control.messages import Message
from elastic_launcher.coordinator.account import account_of_job, job_id
from elastic_launcher.coordinator.actions import Action, Emit, Finish, KillNode, NoteNotice, Order, StartNode
from elastic_launcher.coordinator.decide import decide
from elastic_launcher.coordinator.driver import EngineDriver
from elastic_launcher.coordinator.goodput import Goodput
from elastic_launcher.coordinator.interrupts import taken
from elastic_launcher.coordinator.last_words import last_exception, read_exit, with_last_lines
from elastic_launcher.coordinator.observations import (
    Interrupted,
    MemberJoined,
    MemberReported,
    NodeNoticed,
    Observation,
    RankEnded,
    SaveAsked,
    TargetChanged,
    Tick,
)
from elastic_launcher.coordinator.origin import Origin
from elastic_launcher.coordinator.quota import Clocks, Quota
from elastic_launcher.coordinator.server import ControlServer
from elastic_launcher.coordinator.silence import Silence
from elastic_launcher.coordinator.state import Exit, State, Target
from elastic_launcher.coordinator.status import status
from elastic_launcher.coordinator.store import Store
from elastic_launcher.engines import Engine
from elastic_launcher.hints import HintError, HintSource
from elastic_launcher.workdir import Layout, write_json

TICK_SECONDS = 0.05  # between looks at what is due
HEARTBEAT_SECONDS = 2.0  # what members are told to ask for orders at least this often

logger = logging.getLogger(__name__)


class Events(Protocol):
    """Where events are written."""

    def append(self, kind: str, generation: int, **fields: Any) -> Any:
        """Writes an event, and returns it."""


class Coordinator:
    """Runs one job from its start to its exit code.

    Args:
        config: The job.
        work_dir: Its folder.
        engine: Creates and ends its nodes.
        events: Takes what happens.
        hint_source: Where quota hints come from; None for a fixed target of ``config.max_nodes``.
        on_event: Is given each event after it was written.
        on_second_interrupt: Is called when Ctrl-C is pressed again: whoever presses it does not want to wait.
        store: Where groups meet; a new one if None.
        origin: What the job goes on from; None for a job that begins.
        monotonic: The clock of all waits.
        wall: The clock of hints, in seconds since the epoch.

    Attributes:
        message: How the job ended, once it has.
    """

    def __init__(
        self,
        config: JobConfig,
        work_dir: Path,
        engine: Engine,
        events: Events,
        hint_source: HintSource | None = None,
        *,
        on_event: Callable[[Any], None] | None = None,
        on_second_interrupt: Callable[[], None] | None = None,
        store: Store | None = None,
        origin: Origin | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._layout = Layout(work_dir)
        self._events = events
        self._on_event = on_event or (lambda event: None)
        self._on_second_interrupt = on_second_interrupt or (lambda: None)
        self._interrupts = 0
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._store = store or Store()
        self._origin = origin or Origin()
        self._term = self._origin.past.term
        self._server = ControlServer(self._key, self, self._term)
        self._quota = Quota(config, hint_source, self._tell_target, self._emit_hint, Clocks(monotonic, wall))
        self._state = self._origin.first_state(config, self._store.address)
        self._driver = EngineDriver(engine, self._observe, self._exits, monotonic)
        self._observations: deque[Observation] = deque()
        self._deciding = False
        self._silence = Silence(config.heartbeat_timeout, monotonic())
        self._goodput = Goodput(monotonic())
        self.message = ""

    @property
    def state(self) -> State:
        """What is known of the job now."""
        return self._state

    async def run(self) -> int:
        """Returns the job's exit code. Whatever happens, no node is left."""
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Finish] = loop.create_future()
        self._wanted = asyncio.Event()
        with taken(self.interrupt, loop):
            try:
                finish = await self._govern()
            except HintError as error:
                finish = Finish(ExitCode.BAD_USAGE, str(error))
            except Exception as error:
                logger.exception("the launcher failed")
                finish = Finish(ExitCode.LAUNCHER_FAILED, f"the launcher failed: {type(error).__name__}: {error}")
            finally:
                await self._stop()
            return self.conclude(finish)

    async def _govern(self) -> Finish:
        """Returns how the job is to end."""
        url = await self._server.start()
        control = {"v": 1, "url": url, "store": self._store.address, "key": self._key.hex(), "term": self._term}
        write_json(self._layout.control, control, mode=0o600)
        self._emit("job_started", 0, **account_of_job(self._config, self._layout, self._origin))
        background = {asyncio.ensure_future(one) for one in self._background()}
        try:
            waiting: set[asyncio.Future[Any]] = {self._end, *background}
            while not self._end.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done - {self._end}:
                    one.result()  # raises what went wrong there
            return self._end.result()
        finally:
            for one in background:
                one.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        return [self._tick(), self._driver.run(), self._quota.watch(), self._quota.run(), self._serve_store()]

    async def _tick(self) -> None:
        while True:
            for silent in self._silence.look(self._state, self._monotonic()):
                self._observe(silent)
            self._observe(Tick(self._monotonic()))
            await asyncio.sleep(TICK_SECONDS)

    async def _serve_store(self) -> None:
        await self._wanted.wait()
        await self._store.serve()

    async def _stop(self) -> None:
        """Ends all nodes, then answers nobody any more."""
        self._state = replace(self._state, finished=True)
        await self._driver.close()
        await self._server.close()
        self._store.close()

    def conclude(self, finish: Finish) -> int:
        """Tells how the job ended, once nothing of it runs any more; returns the exit code."""
        message = finish.message
        if finish.log_of is not None:
            log = self._layout.rank_log(*finish.log_of)
            if finish.uncaught and (error := last_exception(log)):
                message = f"{message}; its last exception: {error}"
            message = with_last_lines(message, log, finish.traceback)
        self.message = message
        self._emit(
            "job_finished",
            self._state.generation_number,
            steps=self._state.step,
            samples=self._state.samples,
            exit_code=int(finish.exit_code),
            message=message,
            goodput=round(self._goodput.value(self._monotonic()), 4),
        )
        return int(finish.exit_code)

    # what happens, one thing at a time

    def _observe(self, observation: Observation) -> None:
        """Decides about an observation, after those before it, and does what is decided."""
        self._observations.append(observation)
        if self._deciding:
            return  # an action led to it: its turn comes
        self._deciding = True
        try:
            while self._observations:
                self._state, actions = decide(self._state, self._observations.popleft())
                for action in actions:
                    self._do(action)
                if self._state.over:
                    self._goodput = self._goodput.ended(self._monotonic())
        except Exception as error:
            if not self._end.done():
                self._end.set_exception(error)
            raise
        finally:
            self._deciding = False

    def _do(self, action: Action) -> None:
        match action:
            case Emit():
                self._emit(action.kind, action.generation, **action.fields)
            case Order():
                for member in action.members:
                    self._server.order(member, action.order)
            case StartNode():
                self._wanted.set()
                self._driver.put(action)
            case KillNode():
                self._driver.put(action)
            case NoteNotice():
                self._quota.note_notice(self._state.target.nodes if self._state.target is not None else 0)
            case Finish():
                if not self._end.done():
                    self._end.set_result(action)

    def _emit(self, kind: str, generation: int, **fields: Any) -> None:
        if kind == "generation_formed":
            self._goodput = self._goodput.formed(self._monotonic(), fields["pause_seconds"])
        self._on_event(self._events.append(kind, generation, **fields))

    def _emit_hint(self, kind: str, **fields: Any) -> None:
        self._emit(kind, self._state.generation_number, **fields)

    def _tell_target(self, target: Target, message: str) -> None:
        self._observe(TargetChanged(self._monotonic(), target, message))

    def interrupt(self, number: int) -> None:
        """Takes a signal that asks the launcher to stop."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._on_second_interrupt()
        self._observe(Interrupted(self._monotonic(), number))

    def _exits(self, node: int) -> tuple[tuple[int, Exit], ...]:
        places = range(self._config.nproc_per_node)
        found = ((place, read_exit(self._layout.exit_file(node, place))) for place in places)
        return tuple((place, ended) for place, ended in found if ended is not None)

    # what the server asks (see its Desk)

    def join(self, member: int, pid: int, version: str) -> dict[str, Any]:
        """A member's process called ``init``: returns where the job stands."""
        self.hear(member)
        self._observe(MemberJoined(self._monotonic(), member, pid, version))
        return {
            "epoch": self._state.epoch,
            "step": self._state.step,
            "begun": self._state.generation > 0,
            "store": self._store.address,
            "term": self._term,
            "checkpoint": str(self._origin.folder or ""),
            "expected_world_size": self._expected_world_size(),
            "heartbeat_interval": HEARTBEAT_SECONDS,
        }

    def _expected_world_size(self) -> int:
        """Returns how many ranks there will be when all wanted nodes have come: joiners rehearse that share."""
        nodes = self._state.target.nodes if self._state.target is not None else self._config.min_nodes
        return max(1, nodes) * self._config.nproc_per_node

    def report(self, member: int, report: Message) -> None:
        """A member reported."""
        self._observe(MemberReported(self._monotonic(), member, report))

    def hear(self, member: int, waits: float | None = None) -> None:
        """A member lives; ``waits`` says for how many seconds it has waited for the others in an operation."""
        if member not in self._state.members:
            raise LookupError(f"there is no member {member}")
        self._silence.hear(member, self._monotonic(), waits)

    def node_heartbeat(self, node: int, pid: int) -> None:
        """A node's agent lives."""
        self._check_node(node)

    def node_notice(self, node: int, source: str) -> None:
        """A node was told that it will go."""
        self._check_node(node)
        self._observe(NodeNoticed(self._monotonic(), node, source))

    def rank_ended(self, node: int, local_rank: int, exit_code: int | None, signal: int | None) -> None:
        """A member's process ended."""
        self._check_node(node)
        if not 0 <= local_rank < self._config.nproc_per_node:
            raise LookupError(f"node {node} has no local rank {local_rank}")
        self._observe(RankEnded(self._monotonic(), node, local_rank, Exit(exit_code, signal)))

    def save(self) -> dict[str, Any]:
        """Has the job saved after its next step; returns what was saved last.

        Raises:
            ValueError: If there is no training under way.
        """
        found = status(self._state)
        if found["phase"] != "training":
            raise ValueError(f"the job is {found['phase']}: there is no step after which it could be saved")
        self._observe(SaveAsked(self._monotonic()))
        return {"saved": found["saved"]}

    def status(self) -> dict[str, Any]:
        """Returns the status document."""
        return {"job_id": job_id(self._layout), "name": self._config.name, "term": self._term, **status(self._state)}

    def _check_node(self, node: int) -> None:
        if node not in self._state.nodes:
            raise LookupError(f"there is no node {node}")
