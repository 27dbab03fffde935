"""Assembles a job, runs it, and reports how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.content import Content
from elastic_launcher.coordinator.coordinator import Coordinator
from elastic_launcher.coordinator.model.actions import Finish
from elastic_launcher.coordinator.model.batch_record import BatchRecord
from elastic_launcher.coordinator.model.event_replay import earlier_wait, last_hint, past_after, run_of
from elastic_launcher.coordinator.model.micro_batch_record import MicroBatchRecord
from elastic_launcher.coordinator.resume.orphans import Takeover
from elastic_launcher.coordinator.resume.resume_point import Origin, find_origin, own_term
from elastic_launcher.coordinator.resume.resume_search import CannotRestart
from elastic_launcher.coordinator.rules.ending import kept, when
from elastic_launcher.events import Event, EventError, EventLog, read_events
from elastic_launcher.hints import FileSource, HintSource
from elastic_launcher.hints.configmap import ConfigMapSource
from elastic_launcher.hints.reference import parse_reference
from elastic_launcher.host.machine import gpus
from elastic_launcher.host.retry import Retry, given_up
from elastic_launcher.host.transient import StoreAway, unavailable
from elastic_launcher.launcher.argo_progress import argo_progress
from elastic_launcher.launcher.job_output import LAST_LINES, JobOutput, say
from elastic_launcher.launcher.output_pump import drain
from elastic_launcher.launcher.remote_events import copied_events, recall_events
from elastic_launcher.launcher.script_bundle import content_of
from elastic_launcher.launcher.sites import LocalSite, Site, fit_gpus
from elastic_launcher.launcher.step_outputs import tell_outputs
from elastic_launcher.options import ConfigError
from elastic_launcher.report.state import JobState
from elastic_launcher.report.words import plural
from elastic_launcher.workdir import JobDone, WorkDir, WorkDirHeld, claim, note_past

if TYPE_CHECKING:
    from elastic_launcher.launcher.display import Display


CLAIM_SECONDS = 0.5
"""Between tries to have a work directory that another launcher has: a look at a lock costs next to nothing."""


def launch(config: JobConfig, directory: Path) -> int:
    """Runs a job to its end and returns the launcher's exit code.

    Raises:
        ConfigError: If its work directory can't be had, or this machine has too few GPUs for it.
    """
    began = time.monotonic()
    if config.engine == "local":
        config, remark = fit_gpus(config, gpus())
        if remark:
            say(remark)
    else:
        from elastic_launcher.engines.kubernetes.job_plan import with_queue  # what it needs is an extra of ours

        config = with_queue(config)
    try:
        claimed = claim_in_time(config, directory, content_of(config, directory))
    except WorkDirHeld as held:
        if config.engine == "local":
            raise
        return _put_off(
            f"{held}; it was not given up within {config.orphan_timeout:g} s (--orphan-timeout): try again later"
        )
    except StoreAway as away:
        return _given_up(config, away)
    except JobDone as job:
        say(f"the job in {job.path} is done: {job.message}")
        say(f"timeline: {job.path / 'report.html'}; to train again, leave --work-dir out or choose another folder")
        tell_outputs(ExitCode.DONE, job.message, job.path, say)
        return ExitCode.DONE
    try:
        return _govern(config, claimed, directory, began)
    except StoreAway as away:
        return _given_up(config, away)


def _given_up(config: JobConfig, away: StoreAway) -> int:
    """Ends a launcher whose volume or store stays away, to be tried again; a local job's user tries again himself."""
    if config.engine == "local":
        raise away
    return _put_off(given_up(away, config.orphan_timeout))


def _put_off(message: str) -> int:
    say(message)
    tell_outputs(ExitCode.STOPPED, message, None, say)
    return ExitCode.STOPPED


def _govern(config: JobConfig, claimed: WorkDir, directory: Path, began: float) -> int:
    """Runs the job of a work directory to its end, and returns the launcher's exit code."""
    from elastic_launcher.launcher.display import Display

    with claimed as work_dir, _events(config, work_dir) as events:
        say(f"work directory {work_dir.path}")
        if work_dir.remark:
            say(f"another job was here: {work_dir.remark}")
        site = _site(config, work_dir, directory)
        work_dir.past = site.past(work_dir.past)
        with contextlib.suppress(OSError):  # nodes that still run need no checkpoint; who begins from one asks again
            work_dir.past = own_term(config, work_dir.layout, work_dir.past)
        display = Display(config)
        so_far = _events_so_far(work_dir)
        run = run_of(so_far)
        takeover = _takeover(config, work_dir, site, run)
        first_node = work_dir.past.first_node
        if takeover is not None:
            first_node = takeover.record.first_node
            display.recall(run)
        waits = earlier_wait(run, time.time())
        origin = None if takeover is not None else replace(_resume(config, work_dir, site), waits=waits)
        for remark in site.remarks:
            say(remark)
        logs, come_back = work_dir.layout.logs, takeover is not None
        output = JobOutput(display, logs, config.nproc_per_node, first_node, come_back, argo_progress())

        def hurry(*signal_and_frame: object) -> None:
            _kill_all(coordinator, work_dir, site, display)

        coordinator = Coordinator(
            config,
            work_dir.path,
            site.engine,
            events,
            _hint_source(config),
            on_event=output.take,
            on_second_interrupt=hurry,
            origin=origin,
            began=began,
            takeover=takeover,
            batches=BatchRecord.of(so_far),
            micro_batches=MicroBatchRecord.of(so_far),
            last_hint=last_hint(
                so_far, config.nproc_per_node, resumes=origin is not None and origin.manifest is not None
            ),
            home=site.home,
            platform=site.platform,
        )
        try:
            copied = copied_events(config, work_dir.layout.events, work_dir.past.term, say)
            with _metrics(config.metrics_port, lambda: display.state), copied:
                display.start()
                code, message = asyncio.run(_train(coordinator, output, hurry))
        finally:
            site.close()
            display.stop()
        if events.lost:
            say(
                f"the last {plural(events.lost, 'event')} could not be written to {work_dir.layout.events}: make room "
                "there. status and the report do not know how this job ended"
            )
        say(_report(work_dir))
        tell_outputs(code, message.partition(LAST_LINES)[0], work_dir.path, say)
        say(message)
    return code


def claim_in_time(config: JobConfig, directory: Path, content: Content = Content()) -> WorkDir:  # noqa: B008 - frozen
    """Takes the job's work directory (see `claim`).

    In a cluster it is waited for: a launcher's pod may start again while the process of the one before is still ending.

    Raises:
        WorkDirHeld: If another launcher has it; in a cluster, for all of ``--orphan-timeout``.
    """
    until = time.monotonic() + config.orphan_timeout
    told = False
    while True:
        try:
            return _retry(config).call(lambda: claim(config, directory, content))
        except WorkDirHeld as held:
            if config.engine == "local" or time.monotonic() >= until:
                raise
            if not told:
                say(f"{held}; that may be the launcher before this one, which ends: it is waited for")
            told = True
        time.sleep(CLAIM_SECONDS)


def _retry(config: JobConfig) -> Retry:
    """Returns a retry; a local job looks once, since its user sees what is wrong, and a pod has nobody."""
    seconds = 0.0 if config.engine == "local" else config.orphan_timeout
    return Retry(StoreAway, seconds, say, once=True)


@contextlib.contextmanager
def _events(config: JobConfig, work_dir: WorkDir) -> Iterator[EventLog]:
    """Opens the job's events: those of an earlier launcher too, also where that wrote them on another machine."""
    path = work_dir.layout.events
    recalled = _retry(config).call(lambda: recall_events(config, path))
    try:
        if recalled:
            say(f"the events so far are from {config.checkpoint_dir}")
            work_dir.past = past_after(work_dir.past, _recalled(config, path))
            note_past(work_dir.layout, work_dir.past)
        with contextlib.closing(EventLog(path)) as events:
            yield events
    except ConfigError:
        if recalled:
            path.unlink()  # this job can't go on from there, so they are not its own
        raise


def _recalled(config: JobConfig, path: Path) -> Sequence[Event]:
    """Returns the events that were fetched.

    Raises:
        ConfigError: If this version can't read them.
    """
    try:
        return read_events(path)
    except EventError as error:
        raise ConfigError(f"the events in {config.checkpoint_dir} can't be gone on with: {error}") from error


def _metrics(port: int | None, state: Callable[[], JobState]) -> AbstractContextManager[None]:
    """Answers Prometheus while a block runs, if that is asked for."""
    if port is None:
        return contextlib.nullcontext()
    from elastic_launcher.host.prometheus import serving
    from elastic_launcher.launcher.prometheus import JobCollector

    return serving(port, JobCollector(state))


def _site(config: JobConfig, work_dir: WorkDir, directory: Path) -> Site:
    if config.engine == "local":
        return LocalSite(config, work_dir)
    from elastic_launcher.launcher.cluster.site import ClusterSite  # what it needs is an extra of ours

    return ClusterSite.claim(config, work_dir, directory)


def _events_so_far(work_dir: WorkDir) -> Sequence[Event]:
    """Returns what earlier launchers have written."""
    with contextlib.suppress(OSError, EventError):
        return read_events(work_dir.layout.events) if work_dir.past.term > 1 else ()
    return ()


def _takeover(config: JobConfig, work_dir: WorkDir, site: Site, run: Sequence[Event]) -> Takeover | None:
    """Returns what of that run still runs, if this launcher can go on with it as it is."""
    found = site.find() if run else []
    if not found or work_dir.before is None:
        return None
    if config.resize == "respawn":
        say("a job with --resize respawn is not taken over while it runs: its nodes are ended, and it resumes")
        return None
    theirs, ours = (_of_ranks(one) for one in (work_dir.before, config))
    if work_dir.recoded:
        theirs["code"] = "another"
    if theirs != ours:
        changed = ", ".join(sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name)))
        say(f"the running ranks were started with other options ({changed}): they are ended, and the job resumes")
        return None
    say(f"the launcher goes on with what still runs of this job: {plural(len(found), 'node')}")
    return Takeover(config, work_dir.layout, work_dir.past, run, site, lambda: _resume_instead(config, work_dir, site))


def _of_ranks(config: JobConfig) -> dict[str, object]:
    """Returns what a job's ranks were started with."""
    return {"nproc_per_node": config.nproc_per_node, "arguments": config.arguments, **config.environment()}


def _resume(config: JobConfig, work_dir: WorkDir, site: Site) -> Origin:
    """Ends what an earlier launcher has left behind; returns the checkpoint that the job resumes from."""
    _end_leftovers(work_dir, site)

    def look() -> Origin:
        try:
            work_dir.past = own_term(config, work_dir.layout, work_dir.past)
        except OSError as error:
            raise unavailable(f"the checkpoints can't be read: {error}", error) from error
        return find_origin(config, work_dir.layout, work_dir.past, say)

    return _retry(config).call(look)


def _resume_instead(config: JobConfig, work_dir: WorkDir, site: Site) -> Origin:
    """The same for a coordinator that could not take the running job over: it answers signals, and does not wait."""
    _end_leftovers(work_dir, site)
    try:
        return find_origin(config, work_dir.layout, work_dir.past, say)
    except StoreAway as away:
        if config.engine == "local":
            raise
        raise CannotRestart(f"the running job could not be taken over, and can't restart: {away}") from away


def _end_leftovers(work_dir: WorkDir, site: Site) -> None:
    if work_dir.past.term > 1:
        site.end_leftovers()


def _kill_all(coordinator: Coordinator, work_dir: WorkDir, site: Site, display: Display) -> NoReturn:
    """Ends all nodes and this process at once, after a second Ctrl-C."""
    site.kill_all(coordinator.state.nodes.keys())
    if not coordinator.message:
        where = when(coordinator.state)
        killed = f"interrupted from the keyboard {where}, and again: all was killed at once; {kept(coordinator.state)}"
        coordinator.conclude(Finish(ExitCode.INTERRUPTED, killed))
    display.stop()
    say(f"no report was written: `elastic-launcher report {work_dir.path}` does it")
    say(coordinator.message)
    drain()
    os._exit(ExitCode.INTERRUPTED)


def _hint_source(config: JobConfig) -> HintSource | None:
    if config.hints is None:
        return None
    reference = parse_reference(config.hints)
    return FileSource(Path(config.hints)) if reference is None else ConfigMapSource(reference)


async def _train(coordinator: Coordinator, output: JobOutput, hurry: Callable[..., None]) -> tuple[int, str]:
    following = [asyncio.create_task(output.follower.run()), asyncio.create_task(output.tell_progress())]
    try:
        code = await coordinator.run()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # all is over but the report
        if code == ExitCode.INTERRUPTED:
            signal.signal(signal.SIGINT, hurry)
        verdict = coordinator.state.verdict
        return code, output.last_words(coordinator.message, None if verdict is None else verdict.log_of)
    finally:
        for task in following:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task
        output.follower.close()


def _report(work_dir: WorkDir) -> str:
    """Writes the report; what keeps it from being written does not change how the job ended."""
    from elastic_launcher.report import write_report

    try:
        write_report(work_dir.path)
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        return f"the report could not be written: {type(error).__name__}: {error}"
    return f"timeline: {work_dir.path / 'report.html'}"
