"""Runs one job: feeds each observation to ``decide``, one at a time, and executes the actions that it returns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.coordinator.api.handlers import JobHandlers
from elastic_launcher.coordinator.api.rejections import Refusals
from elastic_launcher.coordinator.api.rejoin import Rejoin
from elastic_launcher.coordinator.api.round_board import RoundBoard
from elastic_launcher.coordinator.api.server import ControlServer
from elastic_launcher.coordinator.api.worker_events import WorkerEvents
from elastic_launcher.coordinator.health.monitor import Watch, between_looks
from elastic_launcher.coordinator.model.actions import (
    Action,
    CloseRound,
    Emit,
    FindResumePoint,
    Finish,
    KillNode,
    LetGo,
    NoteNotice,
    OpenRound,
    Order,
    RestartAll,
    StartNode,
)
from elastic_launcher.coordinator.model.batch_record import BatchRecord
from elastic_launcher.coordinator.model.event_replay import LastHint
from elastic_launcher.coordinator.model.micro_batch_record import MicroBatchRecord
from elastic_launcher.coordinator.model.observations import (
    Interrupted,
    Observation,
    ResumePointFound,
    StopAsked,
    TargetChanged,
    Tick,
)
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.event_fields import account_of_job, account_of_takeover
from elastic_launcher.coordinator.resume.full_restart import FullRestart
from elastic_launcher.coordinator.resume.orphans import Takeover
from elastic_launcher.coordinator.resume.resume_point import Origin, last_saved
from elastic_launcher.coordinator.resume.resume_search import CannotRestart, ResumeSearch
from elastic_launcher.coordinator.rules.checkpoint_restart import await_nodes
from elastic_launcher.coordinator.rules.decide import decide_in_process
from elastic_launcher.coordinator.rules.ending import kept
from elastic_launcher.coordinator.rules.respawn.resize_by_restart import decide_restarts
from elastic_launcher.coordinator.rules.respawn.rounds import decide_rounds
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.engine_driver import EngineDriver
from elastic_launcher.coordinator.runtime.failure_excerpt import last_message
from elastic_launcher.coordinator.runtime.hint_follower import Clocks, HintFollower
from elastic_launcher.coordinator.runtime.node_files import NodeFiles
from elastic_launcher.coordinator.runtime.os_signals import taken
from elastic_launcher.coordinator.runtime.platform import Platform
from elastic_launcher.coordinator.runtime.store import Store
from elastic_launcher.coordinator.runtime.tasks import Background
from elastic_launcher.engines import Engine, NodeSpec
from elastic_launcher.events import EventLog
from elastic_launcher.hints import HintError, HintSource
from elastic_launcher.host.transient import StoreAway
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, hint_id, write_json

logger = logging.getLogger(__name__)


class Coordinator:
    """Runs one job from its start to its exit code.

    Args:
        hint_source: Where quota hints come from; None for a fixed target of ``config.max_nodes``.
        on_event: Is given each event after it was written.
        on_second_interrupt: Is called when Ctrl-C is pressed again, to end at once.
        store: Where groups meet; a new one if None.
        home: The addresses and files for nodes; nodes on this machine, if None.
        platform: Knows what a platform does to the launcher; None where it runs by itself.
        origin: The checkpoint that the job resumes from; None for a new job.
        takeover: The nodes that an earlier launcher has left running; None if there are none.
        last_hint: The hint that it follows while no hint can be read, and its batch's maximum; None for a new job.
        batches: The changes of the global batch that the events so far have recorded.
        micro_batches: Where micro-batches were too large for memory, by the events so far.
        monotonic: The clock of all waits.
        wall: The clock of hints, in seconds since the epoch.
        began: When the launch began, by ``monotonic``; now, if None.

    Attributes:
        message: How the job ended, once it has.
    """

    def __init__(
        self,
        config: JobConfig,
        work_dir: Path,
        engine: Engine,
        events: EventLog,
        hint_source: HintSource | None = None,
        *,
        on_event: Callable[[Any], None] | None = None,
        on_second_interrupt: Callable[[], None] | None = None,
        store: Store | None = None,
        home: CoordinatorHost | None = None,
        platform: Platform | None = None,
        origin: Origin | None = None,
        takeover: Takeover | None = None,
        last_hint: LastHint | None = None,
        batches: BatchRecord = BatchRecord(),  # noqa: B008 - frozen
        micro_batches: MicroBatchRecord = MicroBatchRecord(),  # noqa: B008 - frozen
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        began: float | None = None,
    ) -> None:
        self._config = config
        self._layout = Layout(work_dir)
        self._events = events
        self._on_event = on_event or (lambda event: None)
        self._on_second_interrupt = on_second_interrupt or (lambda: None)
        self._interrupts = 0
        self._platform = platform
        self._judging: asyncio.Future[None] | None = None
        self._leaves: Callable[[], None] | None = None
        self._monotonic = monotonic
        self._began = monotonic() if began is None else began
        home = home or CoordinatorHost()
        self._key = home.key
        self._store = store or Store(home.where)
        self._takeover = takeover
        origin = takeover.origin() if takeover is not None else origin or Origin()
        self._resume_search = ResumeSearch(config, self._layout, origin, self._resume_from, self._warn, monotonic)
        self._term = origin.past.term
        self._hints = HintFollower(
            config,
            hint_id(self._layout),
            hint_source,
            lambda target, message: self._observe(TargetChanged(monotonic(), target, message)),
            self.note,
            Clocks(monotonic, wall),
            last_hint,
            home.tells_kinds,
        )
        first = origin.first_state(config, self._store.address)
        self._state = replace(first, batches=batches, micro_batches=micro_batches)
        self._files = NodeFiles(config, self._layout, self._store.address, home)
        self._driver = EngineDriver(engine, self._observe, self._exits, monotonic)
        self._observations: deque[Observation] = deque()
        self._deciding = False
        self._watch = self._new_watch()
        self._decide = decide_rounds if config.resize == "respawn" else decide_in_process
        self._full_restart = FullRestart(self._driver, self._store, self._resume_search)
        self._lives = WorkerEvents(self._observe, monotonic)
        self._handlers = JobHandlers(
            config, self._layout, self, self._observe, self._lives, self._store.address, self._term, monotonic
        )
        self._held: list[Callable[[], object]] = []
        self._gathering = (
            None if takeover is None else Rejoin(self._handlers, self._held.append, takeover.record.superseded)
        )
        refusals = Refusals(self._warn, monotonic)
        self._server = ControlServer(
            self._key, self._gathering or self._handlers, self._term, home.where, self._files, refusals.take
        )
        self._board = RoundBoard(self._store)
        self._told: frozenset[tuple[str, int]] = frozenset()
        self.message = ""

    @property
    def state(self) -> State:
        """The current state of the job."""
        return self._state

    @property
    def watch(self) -> Watch:
        """The monitor of its members."""
        return self._watch

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint that its members start from; None for the beginning."""
        return self._resume_search.origin.folder

    def _new_watch(self) -> Watch:
        config = self._config
        return Watch(
            config.heartbeat_timeout, config.progress_timeout, self._monotonic(), silence_timeout=config.silence_seconds
        )

    async def run(self) -> int:
        """Runs the job and returns its exit code. No node is left, even after an error."""
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Finish] = loop.create_future()
        self._wanted = asyncio.Event()
        with taken(self.interrupt, loop):
            try:
                finish = await self._govern()
            except (StoreAway, CannotRestart) as error:
                finish = Finish(ExitCode.STOPPED, str(error))
            except (HintError, ConfigError) as error:
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
        background = Background()
        background.add(self._begin(background))
        if self._platform is not None:
            background.add(self._platform.run(self))
        return await background.until(self._end)

    async def _begin(self, background: Background) -> None:
        """Takes over the running nodes, or starts the job; then answers requests, held ones first."""
        takeover, gathering = self._takeover, self._gathering
        if takeover is None or gathering is None or not await self._adopt(takeover, gathering):
            await self._files.open(self._warn, self._monotonic)
            self._state = replace(self._state, batches=self._state.batches.at_restart(self._state.step))
            self._emit("job_started", 0, **account_of_job(self._config, self._layout, self._resume_search.origin))
        elif wrong := await asyncio.to_thread(self._files.missed):
            self._warn(wrong)
        if gathering is not None:
            self._gathering, self._server.handlers = None, self._handlers
            self._catch_up()
        background.add(self._tick(), self._driver.run(), self._serve_store(), self._limit())
        background.add(self._hints.watch(), self._hints.run())
        background.add(self._resume_search.run(), self._full_restart.run(lambda: self._state, self._restart))

    async def _adopt(self, takeover: Takeover, gathering: Rejoin) -> bool:
        """Takes over what an earlier launcher has left running; returns whether there was something."""
        left, _ = await asyncio.gather(takeover.gather(gathering), self._store.serve())
        if left is None:
            waits = self._state.rules.waits
            self._resume_search.origin = replace(await self._driver.call(takeover.resume), waits=waits)
            before = self._state
            first = self._resume_search.origin.first_state(self._config, self._store.address)
            self._state = replace(first, batches=before.batches, micro_batches=before.micro_batches)
            return False
        self._driver.adopt(await self._driver.call(takeover.nodes.take))
        found = takeover.take_over(left, self._state, self._monotonic())
        self._state, self._told = found.state, found.told
        for member in found.heard:
            self._watch.hear(member, self._monotonic())
        self._emit("coordinator_adopted", self._state.generation_number, **account_of_takeover(self._state, self._term))
        if self._state.target is not None:
            self._hints.resume(self._state.target.nodes, found.taken_seconds_ago)
        for action in found.actions:
            self._do(action)
        return True

    async def _tick(self) -> None:
        while True:
            for seen in self._watch.look(self._state, self._monotonic()):
                self._observe(seen)
            self._observe(Tick(self._monotonic()))
            await asyncio.sleep(between_looks(self._state))

    async def _limit(self) -> None:
        """Stops the job when its launch has taken as long as it may."""
        longest = self._config.max_runtime
        if longest is not None:
            await asyncio.sleep(max(0.0, self._began + longest - self._monotonic()))
            why = f"stopped by --max-runtime, {longest:g} s since this launch began,"
            self._observe(StopAsked(self._monotonic(), why))

    async def _serve_store(self) -> None:
        await self._wanted.wait()
        await self._store.serve()
        await self._board.run()

    def _restart(self, first: State, refused: Sequence[str]) -> None:
        """Restarts the job from a checkpoint, after all its nodes were ended."""
        self._state, actions = await_nodes(first, self._monotonic())
        self._decide = decide_restarts if self._config.resize == "respawn" else decide_in_process
        self._watch = self._new_watch()
        for message in refused:
            self._warn(message)
        for action in actions:
            self._do(action)
        self._catch_up()

    async def _stop(self) -> None:
        """Ends all nodes, then closes the server."""
        self._state = replace(self._state, finished=True)
        await self._driver.close(self._leaves)
        if self._leaves is None:
            await asyncio.to_thread(self._files.close)
        await self._server.close()
        self._board.shut()
        self._store.close()

    def conclude(self, finish: Finish) -> int:
        """Records how the job ended, after its last process; returns the exit code."""
        if finish.exit_code != ExitCode.DONE:
            finish = replace(finish, message=self._with_last_save(finish.message))
        self.message = message = last_message(finish, self._layout)
        if self._leaves is not None:
            return int(finish.exit_code)  # the job continues
        self._emit(
            "job_finished",
            self._state.generation_number,
            steps=self._state.step,
            samples=self._state.samples,
            exit_code=int(finish.exit_code),
            message=message,
        )
        return int(finish.exit_code)

    def _with_last_save(self, message: str) -> str:
        """Returns a message that names the last saved step, also where no member was left to report it."""
        state, saved = self._state, None
        with contextlib.suppress(OSError):
            saved = last_saved(self._config, self._layout)
        if saved is None or (state.saved is not None and saved.step <= state.saved.step):
            return message
        return message.replace(kept(state), kept(replace(state, saved=saved)))

    # what happens, one thing at a time

    def _observe(self, observation: Observation) -> None:
        """Decides about an observation, after those before it, and does what is decided."""
        if self._full_restart.under_way and isinstance(observation, (TargetChanged, Interrupted, StopAsked)):
            self._held.append(partial(self._observe, observation))  # a request to the job, until it has restarted
            return
        self._observations.append(observation)
        if self._deciding:
            return  # an action led to it: its turn comes
        self._deciding = True
        try:
            while self._observations:
                self._state, actions = self._decide(self._state, self._observations.popleft())
                for action in actions:
                    self._do(action)
        except Exception as error:
            if not self._end.done():
                self._end.set_exception(error)
            raise
        finally:
            self._deciding = False

    def _exits(self, node: int) -> tuple[tuple[int, Exit], ...]:
        """Returns how the members of a node have ended, as far as they have; none of one that is not known any more."""
        found = self._state.nodes.get(node)
        return () if found is None else self._files.exits(node, found.members)

    def _do(self, action: Action) -> None:
        match action:
            case Emit(kind="notice") if ("notice", action.fields["node"]) in self._told:
                pass  # the coordinator before this one has written it down
            case Emit():
                self._emit(action.kind, action.generation, **action.fields)
            case Order():
                self._server.order(action.members, action.order)
            case StartNode():
                self._wanted.set()
                respawns = self._decide is decide_rounds
                numbers = action.node, action.first_member, action.nproc_per_node
                self._driver.put(NodeSpec(*numbers, respawns, action.over_quota))
            case KillNode():
                self._driver.put(action)
            case RestartAll():
                if self._state.target is not None and not self._full_restart.under_way:
                    wanted = TargetChanged(self._monotonic(), self._state.target)
                    self._held.insert(0, partial(self._observe, wanted))
                self._full_restart.ask()
            case OpenRound():
                self._board.open(action.number, action.nodes)
            case CloseRound():
                self._board.close(action.number)
            case LetGo():
                self._lives.let_go.add(action.node)
            case NoteNotice():
                self._hints.note_notice(self._state.target.nodes if self._state.target is not None else 0)
            case FindResumePoint():
                self._resume_search.put(self._state)
            case Finish():
                if not self._end.done():
                    self._end.set_result(action)

    def _emit(self, kind: str, generation: int, **fields: Any) -> None:
        if kind == "generation_formed":
            self._store.forget_before(fields["formation"])
        elif kind == "step_times":
            self._hints.note_most_samples(fields["bounds"]["max_batch_size"])
        self._on_event(self._events.append(kind, generation, **fields))

    def _resume_from(self, found: ResumePointFound) -> None:
        """Takes the checkpoint that the job resumes from, with members that have not reported yet."""
        self._watch = self._new_watch()
        self._observe(found)

    def interrupt(self, number: int) -> None:
        """Takes a signal that asks the launcher to stop."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._on_second_interrupt()
        if number == signal.SIGTERM and self._platform is not None:
            self._judging = asyncio.ensure_future(self._platform.signalled(self))
        else:
            self.observe(lambda now: Interrupted(now, number))

    def observe(self, make: Callable[[float], Observation]) -> None:
        """Takes what happened outside, after a takeover is complete; deadlines count from now."""
        observation = make(self._monotonic())
        self._once_known(lambda: self._observe(observation))

    def leave(self, why: str, close: Callable[[], None]) -> None:
        """Ends this launcher, and none of the nodes: another coordinator goes on with them."""
        if not self._end.done():
            self._leaves = close
            self._end.set_result(Finish(ExitCode.STOPPED, why))

    def note(self, kind: str, **fields: Any) -> None:
        """Writes an event of what happens outside, after a takeover is complete."""
        self._once_known(lambda: self._emit(kind, self._state.generation_number, **fields))

    def _once_known(self, do: Callable[[], None]) -> None:
        """Does something now, or as soon as a takeover is complete."""
        if self._gathering is None:
            do()
        else:
            self._held.append(do)

    def _catch_up(self) -> None:
        """Does what could not be done before it was known where the job stands."""
        held = [*self._held]
        self._held.clear()
        for take in held:
            take()

    def _warn(self, message: str) -> None:
        self.note("warning", message=message)
