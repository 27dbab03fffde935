"""Finds what a job resumes from: the newest complete checkpoint in its folder that is its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from elastic_launcher.checkpoint import CheckpointError, Manifest
from elastic_launcher.checkpoint.changes import Resumed, refusal
from elastic_launcher.checkpoint.files import read_manifest
from elastic_launcher.checkpoint.folder import read_pointer
from elastic_launcher.checkpoint.storage import StorageError, is_url
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.config import JobConfig
from elastic_launcher.content import Content
from elastic_launcher.control.messages import Saved
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.coordinator.model.state import Rules, State
from elastic_launcher.host.transient import unavailable
from elastic_launcher.options import ConfigError
from elastic_launcher.resume_advice import resume_advice, retry_advice
from elastic_launcher.workdir import Layout, Past, follows_another, job_id, note_past, read_content, write_json


@dataclass(frozen=True, slots=True)
class Origin:
    """The starting point of a run of a job.

    Attributes:
        past: What earlier runs have used up.
        folder: The checkpoint that the job resumes from; None for the beginning.
        manifest: The manifest of that checkpoint.
        place: Where that was copied from; "" where nothing was copied.
        waits: The wait for nodes in which the launcher before this one was.
    """

    past: Past = Past()
    folder: Path | None = None
    manifest: Manifest | None = None
    place: str = ""
    waits: EarlierWait | None = None

    @property
    def where(self) -> str:
        """The place of the checkpoint, for messages."""
        return self.place or str(self.folder)

    def first_state(self, config: JobConfig, store: str) -> State:
        """Returns what the coordinator knows at first; groups meet in ``store``, a TCPStore's ``host:port``."""
        rules = Rules(
            config.min_nodes,
            config.nproc_per_node,
            store,
            config.start_timeout,
            wait_for_quota=config.wait_for_quota or 0.0,
            node_timeout=config.node_timeout,
            max_failures=config.max_failures or 0,
            grace_period=config.grace_period,
            first_node=self.past.first_node,
            first_member=self.past.first_member,
            generations_before=self.past.generations,
            own_saves=config.resize == "respawn" and self.manifest is None,
            c10d=config.rdzv_backend == "c10d",
            pending_timeout=math.inf if config.pending_timeout is None else config.pending_timeout,
            min_wait=config.min_wait,
            replaces_noticed=config.engine == "kubernetes",
            resume_advice=resume_advice(),
            waits=self.waits,
        )
        if self.manifest is None:
            return State(rules)
        rules = replace(rules, resumes=Resumed(self.manifest.job, config.accepted, self.where))
        step, epoch, samples = self.manifest.step, self.manifest.epoch, self.manifest.samples
        saved = Saved(step, self.where, self.manifest.size, 0.0, 0.0)
        phase, sums = self.manifest.phase, self.manifest.sums
        return State(rules, step=step, phase=phase, epoch=epoch, sums=sums, samples=samples, saved=saved)


def own_term(config: JobConfig, layout: Layout, past: Past) -> Past:
    """Returns a new launcher's past, with a term above all that have written to the job's checkpoints.

    They may have been written from another work directory.

    Raises:
        ConfigError: If they can't be reached from this machine.
        OSError: If they can't be read for now: the term may be too low.
    """
    try:
        last = open_store(config.checkpoint_dir, layout.checkpoints).last_term()
    except StorageError as error:
        raise ConfigError(f"--checkpoint-dir: {error}") from error
    if last >= past.term:
        past = replace(past, term=last + 1)
        note_past(layout, past)
    return past


def find_origin(config: JobConfig, layout: Layout, past: Past, say: Callable[[str], None]) -> Origin:
    """Looks for the newest usable checkpoint, and keeps earlier runs from writing.

    ``say`` takes a line for the user, for each checkpoint that can't be used, and for the one that is.

    Raises:
        ConfigError: If there are checkpoints and none can be used, or the folder can't be written.
        StoreAway: If that may pass.
    """
    store = open_store(config.checkpoint_dir, layout.checkpoints, job_id(layout))
    try:
        content = read_content(layout.path)
        found = store.find_newest(lambda manifest: _refusal(manifest, config, content))
    except StorageError as error:
        raise ConfigError(f"the checkpoints in {store.place} can't be read: {error}") from error
    except OSError as error:
        why = f"the checkpoints in {store.place} can't be read: {error}"
        raise unavailable(f"{why}; once they can, {retry_advice()}", error) from error
    if found.refused and found.folder is None:
        if not follows_another(layout):
            raise ConfigError(
                f"no checkpoint in {store.place} can be used: {'; '.join(found.refused)}; remove that folder to "
                "train from the beginning"
            )
        say(f"what is saved in {store.place} is of the job that was done before this one: it is not used")
    elif found.refused:
        for reason in found.refused:
            say(f"{reason}; the checkpoint before it is used instead")
    try:
        for path in found.damaged:
            store.set_aside(path)
        store.raise_fence(past.term, past.generations)
    except CheckpointError as error:
        raise ConfigError(f"the checkpoints in {store.place} can't be written: {error}") from error
    except OSError as error:
        why = f"the checkpoints in {store.place} can't be written: {error.strerror or error}"
        raise unavailable(why, error) from error
    origin = Origin(past, found.folder, found.manifest, found.place)
    _note(layout, found.folder)
    if found.manifest is not None:
        say(f"this job resumes from step {found.manifest.step}, saved in {origin.where}")
    elif past.term > 1:
        say("this job had saved nothing: it trains from the beginning")
    return origin


def noted_manifest(layout: Layout) -> Manifest | None:
    """Returns the manifest noted with the last checkpoint found; None if there is none, or it can't be read."""
    noted = noted_origin(layout)
    with contextlib.suppress(OSError, CheckpointError):
        return read_manifest(Path(noted)) if noted else None
    return None


def noted_origin(layout: Layout) -> str | None:
    """Returns where the checkpoint is that was found last, "" for the beginning; None where that is not known."""
    try:
        return str(json.loads(layout.origin.read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_saved(config: JobConfig, layout: Layout) -> Saved | None:
    """Returns the last checkpoint, by the pointer in its folder; None where there is none, or it is at a URL.

    Raises:
        OSError: If that can't be read.
    """
    place = config.checkpoint_dir
    if place is not None and is_url(place):
        return None
    folder = layout.checkpoints if place is None else Path(place)
    name = read_pointer(folder).checkpoint
    there = name and (folder / name).is_dir()
    return Saved(int(name.removeprefix("step-")), str(folder / name), 0, 0.0, 0.0) if there else None


def _note(layout: Layout, folder: Path | None) -> None:
    """Writes down what was found, for a launcher that adopts members which have not asked for it yet."""
    try:
        write_json(layout.origin, {"v": 1, "checkpoint": str(folder or "")})
    except OSError:  # the disk is full, say: better nothing than what was found before
        with contextlib.suppress(OSError):
            layout.origin.unlink(missing_ok=True)


def _refusal(manifest: Manifest, config: JobConfig, content: Content) -> str:
    """Returns what differs between a checkpoint's job and this one, as far as that is known before nodes start."""
    script = config.module or os.path.basename(str(config.script))
    here = replace(manifest.job, script=script, arguments=config.arguments, code=content.code, data=content.data)
    if config.global_batch_size is not None:
        here = replace(here, global_batch_size=config.global_batch_size)
    return refusal(manifest.job, here, config.accepted)
