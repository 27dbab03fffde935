"""Decides when this job is saved, by which of its ranks, and restores the checkpoint that it resumes from.

All ranks learn in one gradient reduction that one of them wants a checkpoint; after that step they hold the same state,
and rank 0 saves it. A job that is to stop trains no further then.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from elastic_launcher import variables
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.checkpoint import CheckpointError, JobIdentity, Manifest, Mark
from elastic_launcher.checkpoint.changes import OF_SCRIPT, OTHERWISE, Resumed, step_in_epoch
from elastic_launcher.checkpoint.files import read_manifest
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.config import JobConfig
from elastic_launcher.content import Content
from elastic_launcher.control import messages
from elastic_launcher.host.output import say
from elastic_launcher.host.retry import Retry
from elastic_launcher.host.transient import StoreAway, may_pass, pauses
from elastic_launcher.period import Period, read_period
from elastic_launcher.torch.collectives.consensus import Agreement
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.connection import leave
from elastic_launcher.torch.membership.formations import JobOver
from elastic_launcher.torch.shard.part_files import OtherParts
from elastic_launcher.torch.state.checkpoint_writer import Saved, Saver, load
from elastic_launcher.torch.state.training_state import StateMismatch
from elastic_launcher.workdir import Layout, WorkDirError, read_content, read_job

if TYPE_CHECKING:
    from elastic_launcher.torch.autoscaling import Autoscaling
    from elastic_launcher.torch.membership.member import Member
    from elastic_launcher.torch.membership.membership import Membership
    from elastic_launcher.torch.shard.node import NodeShards
    from elastic_launcher.torch.state.course import Sums
    from elastic_launcher.torch.state.position import Position
    from elastic_launcher.torch.state.training_state import TrainingState

JOB = "TORCHELASTIC_RUN_ID"  # torchrun's name for it


class Training(Protocol):
    """The part of a job that is saved; see `Session`."""

    state: TrainingState
    sums: Sums
    schedule: BatchSchedule
    autoscaling: Autoscaling | None
    membership: Membership | None
    shards: NodeShards | None

    @property
    def position(self) -> Position:
        """The position of the training."""

    def move_to(self, position: Position) -> None:
        """Moves to where a checkpoint is."""

    def take_schedule(self, schedule: BatchSchedule) -> None:
        """Takes the schedule of a checkpoint."""

    def leave_job(self) -> NoReturn:
        """Ends this process with 0."""

    def any_on_node(self, mine: bool) -> bool:
        """Returns whether something holds on a rank with which this one shares its model, or here."""

    def need_membership(self, what: str) -> Membership:
        """Returns the membership, or says why there is none yet."""


class Checkpoints:
    """Saves one job and resumes it, in one process."""

    def __init__(self, session: Training, member: Member, work_dir: Path) -> None:
        every = os.environ.get(variables.CHECKPOINT_EVERY)
        self._session = session
        self._member = member
        self._work_dir = work_dir
        self._period = read_period(every) if every else Period()
        self._store = open_store(
            os.environ.get(variables.CHECKPOINT_DIR), Layout(work_dir).checkpoints, os.environ[JOB]
        )
        self._saver = Saver(
            self._store, int(os.environ.get(variables.KEEP_CHECKPOINTS, "2")), self._tell_saved, self._tell_failed
        )
        self._fingerprint: dict[str, Any] = {}
        self._asked = False
        self._due = False
        self._compare = False
        self._halting = False
        self._begun_at = time.monotonic()
        self._begun_step = 0
        self._saves = True  # False on a rank that may become rank 0 later: the last write is unknown to it
        self._cost = 0.0
        self._failed = False  # the last save

    # -- going on from one

    def resume(self, fingerprint: dict[str, Any]) -> None:
        """Loads the state of the checkpoint that the job resumes from, if there is one.

        What the disk or the store does not give for a moment is tried again until the orphan time-out is over; then
        this process leaves. ``fingerprint`` is what this rank trains, as reported to the coordinator.

        Raises:
            RuntimeError: If it is of another training, or can't be read; the message says what is wrong.
        """
        self._fingerprint = fingerprint
        if not self._member.standing.checkpoint:
            return
        seconds = self._member.connection.orphan_timeout
        retry = Retry(StoreAway, seconds, lambda why: say(f"elastic-launcher: {why}"))
        try:
            retry.call(lambda: self._resume_from(Path(self._member.standing.checkpoint)))
        except StoreAway as away:
            leave(f"{away}; that was tried for {seconds:g} s")

    def _resume_from(self, given: Path) -> None:
        try:
            with self._store.brought(given) as folder:
                manifest = read_manifest(folder)
                if different := Resumed(manifest.job, self._config.accepted, str(given)).refuse(self._fingerprint):
                    raise RuntimeError(different)
                schedule = self._schedule_of(manifest, given)
                position = load(folder, manifest, self._session.state)
            here = step_in_epoch(manifest, self._identity())
            self._session.move_to(replace(position, step_in_epoch=here))
            self._session.take_schedule(schedule)
        except (CheckpointError, StateMismatch) as error:
            raise RuntimeError(f"this job can't go on from {given}: {error}") from error
        except (OSError, WorkDirError) as error:
            lasts = isinstance(error, OSError) and not may_pass(error)
            raise (RuntimeError if lasts else StoreAway)(f"this job can't go on from {given}: {error}") from error

    def _schedule_of(self, manifest: Manifest, folder: Path) -> BatchSchedule:
        """Returns the batch schedule by which this job goes on from a checkpoint.

        Raises:
            RuntimeError: If the batch adapted there, and does not here.
        """
        here, schedule = self._session.schedule.batch_size(0), manifest.schedule
        if schedule.batch_size(0) != here:  # which the user has accepted
            return BatchSchedule.fixed(here)
        if len(schedule.entries) > 1 and self._session.autoscaling is None:
            raise RuntimeError(
                f"this job can't go on from {folder}: its global batch adapted there, and is {schedule.entries[-1][1]} "
                f"samples by now; call loader.autoscale_batch_size() in the script again, or {OTHERWISE}"
            )
        return schedule

    def note_training(self, fingerprint: dict[str, Any]) -> None:
        """Records that this rank trains from now on, and what: the first checkpoint is due a period later."""
        self._fingerprint = fingerprint
        self._saves = self._session.need_membership("a checkpoint").rank == 0
        self._begun_at, self._begun_step = time.monotonic(), self._session.position.step
        with contextlib.suppress(WorkDirError):  # each save tries again
            _ = self._config, self._content

    def note_data(self, data: dict[str, Any]) -> None:
        """Records the data set with which the coming epochs begin."""
        self._fingerprint |= data

    @cached_property
    def _config(self) -> JobConfig:
        """The job's, read once: a folder that is away for a moment, or for good, costs no later save."""
        return read_job(self._work_dir)[1]

    @cached_property
    def _content(self) -> Content:
        """The identity of the job's code and data, read once as well."""
        return read_content(self._work_dir)

    def _identity(self) -> JobIdentity:
        script = self._config.module or os.path.basename(str(self._config.script))
        known = {name: self._fingerprint[name] for name in OF_SCRIPT}
        return JobIdentity(script, self._config.arguments, **known, **asdict(self._content))

    # -- saving

    def ask(self) -> None:
        """Has the next boundary save."""
        self._asked = True

    def wishes(self) -> tuple[bool, bool]:
        """Returns whether this rank wants a checkpoint after the step that runs now, and whether the job is to stop."""
        membership = self._session.membership
        due = (
            membership is not None
            and membership.rank == 0
            and not self._saver.busy
            and (not self._saves or self._is_due())
        )
        return due or self._asked or self._member.orders.save_wanted, self._member.connection.rejoin_state.halting

    def _is_due(self) -> bool:
        steps = self._session.position.step + 1 - self._begun_step
        return self._period.is_due(steps, time.monotonic() - self._begun_at, self._cost)

    def agree(self, agreement: Agreement) -> None:
        """Takes what all ranks said together."""
        if agreement.save or agreement.halt:
            self._due = self._compare = True
            self._asked = self._member.orders.save_wanted = False
        self._halting = bool(agreement.halt)

    def after_step(self) -> bool:
        """Saves if that was agreed on and nothing is being written; returns whether all ranks compare their parameters.

        Raises:
            SystemExit: With 0, where the job stops.
        """
        if self._halting:
            self.halt()
        if self._due and not self._session.any_on_node(self._saver.busy):
            self._due = False
            self._begin()
        compare, self._compare = self._compare, False
        return compare

    def _begin(self) -> None:
        session = self._session
        self._begun_at, self._begun_step = time.monotonic(), session.position.step
        if session.need_membership("a checkpoint").group.replicas.rank == 0:
            self._save()

    def _save(self) -> None:
        session = self._session
        membership = session.need_membership("a checkpoint")
        self._saves = True
        if session.shards is not None and membership.rank:
            self._saver.assist(session.state, session.shards)
            return
        mark = Mark(self._member.connection.term, membership.formation.generation, session.position.step)
        try:
            sums = session.sums.lasting()
            schedule = session.schedule.until(mark.step)
            self._saver.save(
                session.state,
                session.position,
                self._identity(),
                mark,
                membership.world_size,
                sums,
                schedule,
                session.shards,
            )
        except (RuntimeError, MemoryError, WorkDirError) as error:  # the first two for lack of memory for the copy
            if session.shards is not None:
                OtherParts(session.shards).end()
            self._tell_failed(mark.step, str(error))

    def doubt(self) -> str:
        """Reports the checkpoint that holds parameters that differ between ranks, if one was begun after this step."""
        step = self._session.position.step
        if step != self._begun_step:
            return ""
        return (
            f" A checkpoint of step {step} in {self._store.place} holds those of rank 0: if there is one, remove it to "
            "go on from the one before."
        )

    def halt(self, *, whole: bool = True) -> None:
        """Saves, and waits for the end of the job; saves also where the rank that was to do so is gone.

        What can't be saved is tried again. Returns where the job trains on. ``whole``: the state is between two steps.

        Raises:
            SystemExit: With 0, when the job ends.
        """
        point("halt", self._session.position.step)
        self._saver.wait()
        membership, session = self._session.need_membership("the end"), self._session
        saves = membership.group.replicas.rank == 0
        for pause in pauses():
            self._failed = False
            if saves and whole:
                self._save()
                self._saver.wait()
            again = saves and session.any_on_node(self._failed)
            told = saves and not again and (session.shards is None or membership.rank == 0)
            self._member.reports.put(messages.Halted(session.position.step, told))
            try:
                if self._member.orders.stand_still(pause if again else math.inf):
                    self._halting = False
                    return
            except JobOver:
                self._session.leave_job()
            saves = saves or session.shards is None  # a part of a model is saved with all others of its node

    def _tell_saved(self, saved: Saved) -> None:
        self._cost = saved.seconds
        held, took = round(saved.held_seconds, 4), round(saved.seconds, 4)
        self._member.reports.put(messages.Saved(saved.step, saved.path, saved.size, held, took))

    def _tell_failed(self, step: int, why: str) -> None:
        self._failed = True
        self._member.reports.put(messages.SaveFailed(step, why))
