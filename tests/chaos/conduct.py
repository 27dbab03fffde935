"""Plays a schedule on this machine: what is done to a job there from the outside."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace

import psutil

from elastic_launcher.config import ExitCode
from elastic_launcher.host import processes
from tests.chaos.lead import EVERYBODY, LONG, Lead, Rank
from tests.chaos.schedule import SAVING, Act, Schedule, Seat
from tests.support.launches import Launcher
from tests.support.leftovers import Stage

ROOM = 60_000  # bytes that a file may have where the disk is full: more than a ledger of one epoch, less than a state
ADOPTED = "coordinator_adopted"


class Conductor(Lead):
    """Leads a job of processes on this machine.

    Args:
        stage: Where it runs.
        schedule: What is to happen.
        say: Takes a line about each act.
        then: Is called when the effect of an act was seen.
    """

    def __init__(
        self,
        stage: Stage,
        schedule: Schedule,
        say: Callable[[str], None],
        then: Callable[[Act], None] = lambda act: None,
    ) -> None:
        folder = stage.here / "out"
        folder.mkdir()
        stage.own.add(folder.name)
        super().__init__(stage.work_dir, folder, schedule, say, then)
        self._stage = stage
        self._launchers = contextlib.ExitStack()
        self.launcher: Launcher

    def play(self) -> int:
        """Plays the whole schedule; returns the launcher's exit code.

        Raises:
            AssertionError: If something that was to come did not.
        """
        self._hint(self._schedule.nodes)
        self._lead()
        with contextlib.ExitStack() as stack:
            self.launcher = stack.enter_context(self._stage.launched(*self._options(), script=self._arguments()))
            stack.enter_context(self._launchers)
            self._act_out()
            code = self.launcher.wait(LONG)
            self.left = self._stage.left()
        return code

    def rank(self, seat: Seat) -> Rank:
        """Returns who sits on a seat now, and its process, which a launcher that took over learns from it."""
        rank = super().rank(seat)

        def pid() -> int | None:
            members = [one for node in self.launcher.status()["nodes"] for one in node["members"]]
            return next(one["pid"] for one in members if one["member"] == rank.member)

        self._await(lambda: pid() is not None, "its process is known")
        found = pid()
        assert found is not None
        return replace(rank, pid=found)

    # -- what happens

    def _freeze_and_thaw(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        self._lead(faults=[("freeze", act.moment, rank)])
        self._await(lambda: _stopped(rank), "the rank is frozen")
        os.kill(rank.pid, signal.SIGCONT)

    def _kill_process(self, act: Act) -> None:
        """Kills a process of each of some nodes that is not the script's."""
        ranks = [self.rank(seat) for seat in act.hit]
        for process in [self._other_process(rank, act.how) for rank in ranks]:
            process.kill()
        self._lead()
        self._settle(gone={rank.node for rank in ranks})

    def _other_process(self, rank: Rank, which: str) -> psutil.Process:
        agent = psutil.Process(self.launcher.node_pid(rank.node))
        parent = psutil.Process(rank.pid).parent()
        assert parent is not None
        (torchrun,) = agent.children()
        return {"agent": agent, "torchrun": torchrun, "rank's parent": parent}[which]

    def _launcher_over_broken_hints(self, act: Act) -> None:
        self._break_hints(act)
        self._launcher(Act(act.kind))
        self._hint(self._wanted)

    def _tell(self, act: Act, node: int) -> None:
        os.kill(self.launcher.node_pid(node), signal.SIGTERM)

    def _full_disk(self, act: Act) -> None:
        """Leaves rank 0 room for small files only, has it save, and makes room again."""
        rank = self.rank(Seat(0))
        failed, saved = len(self._of("warning")), len(self._of("checkpoint_saved"))
        limits = resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        self._lead(save=True)
        self._await(lambda: len(self._of("warning")) > failed, "a checkpoint that can't be saved is said")
        resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, limits)
        self._await(lambda: len(self._of("checkpoint_saved")) > saved, "it is saved later")

    def _launcher(self, act: Act) -> None:
        if act.moment:
            self._lead(faults=[("launcher", act.moment, self.rank(act.hit[0]))])
        else:
            self.launcher.process.kill()
        assert self.launcher.wait(LONG) == -signal.SIGKILL
        self._relaunch()

    def _stop(self, act: Act) -> None:
        """Stops the job, which saves its last step, and starts it again with nodes of the size wanted."""
        self.launcher.process.send_signal(signal.SIGTERM)
        self._lead()
        code = self.launcher.wait(LONG)
        assert code == ExitCode.STOPPED, f"exit code {code} of a launcher that was told to stop"
        saved = self._saved()
        self._nproc = act.each
        self._hint(act.to)
        self._relaunch()
        resumed = self._of("job_started")[-1].get("resumed_step", 0)
        stopped = self._of("job_finished")[-1]["steps"]
        assert resumed == saved == stopped, f"stopped after {stopped}, saved {saved}, resumed after {resumed} steps"

    def _everything(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        self._await(self._saved_lately, "a checkpoint that is no more than a period old")
        self._lead(faults=[("freeze", act.moment, rank)], save=act.moment == SAVING)
        self._await(lambda: _stopped(rank), "the moment at which everything is killed")
        self.launcher.process.kill()
        self.launcher.process.wait()
        processes.kill_until_none(str(self._stage.work_dir))
        saved = self._saved()
        self._hint(act.to)
        self._relaunch()
        resumed = self._of("job_started")[-1].get("resumed_step", 0)
        assert resumed >= saved, f"step {saved} was saved, and the job went on from step {resumed}"
        assert "is damaged" not in self.launcher.stderr, self.launcher.stderr

    def _saved_lately(self) -> bool:
        """Returns whether a checkpoint is a period old at most; a step more starts one that a busy writer held up."""
        if self._saved() < self._step - self._schedule.every:
            self._hold(1, "another step")
        return self._saved() >= self._step - self._schedule.every

    def _relaunch(self) -> None:
        """Starts another launcher, which adopts the job or goes on from its last checkpoint, and awaits that."""
        runs, before, adoptions = len(self._of("job_started")), len(self._formed()), len(self._of(ADOPTED))
        self._let_in = EVERYBODY
        self._lead()
        self.launcher = self._launchers.enter_context(self._stage.again(*self._options(), script=self._arguments()))

        def trains() -> bool:
            if len(self._of(ADOPTED)) > adoptions:
                return True
            again = len(self._of("job_started")) > runs and len(self._formed()) > before
            return again and len(self._formed()[-1]) == self._wanted

        self._await(trains, "the job goes on")
        self._nodes = self._formed()[-1]
        self._let_in = max(member for event in self._of("node_started") for member in event["members"])

    # -- where the job runs

    def _write_hints(self, text: str) -> None:
        """Edits the hints file as an administrator would: aside, then in one move."""
        aside = self._stage.here / "hints.new"
        aside.write_text(text)
        aside.replace(self._stage.here / "hints.json")

    def _remove_hints(self) -> None:
        (self._stage.here / "hints.json").unlink()

    def _over(self) -> str | None:
        ended = self.launcher.process.poll() is not None
        return (self.launcher.stderr.splitlines() or [""])[-1] if ended else None


def _stopped(rank: Rank) -> bool:
    try:
        return psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
