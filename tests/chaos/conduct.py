"""Plays a schedule: holds the training at a step, does what is to happen there, and goes on when its effect is seen."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from elastic_launcher.agent import processes
from elastic_launcher.events import Event, EventFollower
from tests.chaos.schedule import JOINER, LOOP, ONE, SAVING, Act, Schedule, Seat
from tests.soak.stage import Stage
from tests.support import Launcher, until

SCRIPT = Path(__file__).with_name("train.py")
LONG = 180.0  # seconds for what comes within a few, on a machine that is busy
ROOM = 40_000  # bytes that a file may have where the disk is full: more than a ledger of one epoch, less than a state
HEARTBEAT_SECONDS = 3
EVERYBODY = 10**9  # a member's number that none has
ADOPTED = "coordinator_adopted"
GONE = ("node_lost", "node_failed", "node_left")


@dataclass(frozen=True)
class Rank:
    """A rank as it is when the training is held."""

    member: int
    node: int
    pid: int


class Conductor:
    """Leads one job through its schedule.

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
        self._stage = stage
        self._schedule = schedule
        self._say = say
        self._then = then
        self._follower = EventFollower(stage.work_dir / "events.jsonl")
        self._events: list[Event] = []
        self.folder = stage.here / "out"
        self.folder.mkdir()
        stage.own.add(self.folder.name)
        self._launchers = contextlib.ExitStack()
        self._number = 0
        self._wanted = schedule.nodes
        self._let_in = schedule.nodes * schedule.nproc
        self._nodes: set[int] = set()
        self._step = 0
        self.launcher: Launcher

    def play(self) -> int:
        """Plays the whole schedule; returns the launcher's exit code.

        Raises:
            AssertionError: If something that was to come did not.
        """
        schedule = self._schedule
        self._hint(schedule.nodes)
        self._lead()
        with contextlib.ExitStack() as stack:
            self.launcher = stack.enter_context(self._stage.launched(*self._options(), script=self._arguments()))
            stack.enter_context(self._launchers)
            self._await(lambda: self._formed() and len(self._formed()[-1]) == schedule.nodes, "all nodes")
            self._nodes = self._formed()[-1]
            for act in schedule.acts:
                self._lead(hold=act.after)
                self._await((self.folder / f"at-{self._number}.json").exists, f"the step at which to {act.kind}")
                self._step = json.loads((self.folder / f"at-{self._number}.json").read_text())["step"]
                self._say(f"step {self._step}: {act}")
                getattr(self, "_" + act.kind.replace(" ", "_"))(act)
                self._then(act)
            code = self.launcher.wait(LONG)
            self.left = self._stage.left()
        return code

    @property
    def events(self) -> list[Event]:
        """All events of the job so far."""
        self._events += self._follower.poll()
        return self._events

    # -- what happens

    def _kill(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        moments = [act.moment] * len(ranks)
        if act.then:
            moments[-1] = act.then
        self._lead(faults=[("kill", *pair) for pair in zip(moments, ranks, strict=True)], save=act.moment == SAVING)
        self._settle(gone={rank.node for rank in ranks})

    def _freeze(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        self._lead(faults=[("freeze", act.moment, rank)])
        self._settle(gone={rank.node})

    def _freeze_and_thaw(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        self._lead(faults=[("freeze", act.moment, rank)])
        self._await(lambda: _stopped(rank), "the rank is frozen")
        os.kill(rank.pid, signal.SIGCONT)

    def _break(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        faults = [("break", act.moment, rank) for rank in ranks]
        if act.then:
            faults[-1] = ("kill", act.then, ranks[-1])
        before = len(self._formed())
        self._lead(faults=faults)
        self._await(lambda: len(self._formed()) > before, "another generation")
        self._settle(gone={ranks[-1].node} if act.then else ())

    def _notice(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        told = ranks[:1] if act.how == "and kill" else ranks
        for rank in told:
            os.kill(self.launcher.node_pid(rank.node), signal.SIGTERM)
            self._await(
                lambda node=rank.node: any(e["node"] == node for e in self._of("notice")), f"notice to node {rank.node}"
            )
        self._lead(faults=[("kill", act.moment, rank) for rank in ranks if rank not in told])
        self._settle(gone={rank.node for rank in ranks})

    def _shrink(self, act: Act) -> None:
        applied = len(self._of("hint_applied"))
        self._hint(act.to)
        self._await(lambda: len(self._of("hint_applied")) > applied, "the hint is applied")
        self._lead()
        self._settle(gone=sorted(self._nodes)[act.to :])

    def _grow(self, act: Act) -> None:
        applied = len(self._of("hint_applied"))
        self._hint(act.to)
        self._await(lambda: len(self._of("hint_applied")) > applied, "the hint is applied")

    def _admit(self, act: Act) -> None:
        """Lets in nodes that are missing, all or one, and has the training wait until they are ready."""
        count = 1 if act.how == ONE else self._wanted - len(self._nodes)
        self._await(lambda: len(self._waiting()) >= count, f"{count} nodes are started")
        joiners = sorted(self._waiting())[:count]
        hit: list[Rank] = []
        if act.how == JOINER:
            first = next(event for event in self._of("node_started") if event["node"] == joiners[0])
            hit = [Rank(first["members"][act.hit[0].local], joiners[0], 0)]
        elif act.hit:
            hit = [self.rank(act.hit[0])]
        faults = [("kill", act.moment, rank) for rank in hit]
        if faults:  # a rank that waits for rank 0 in the step that is held reads this in the next one only
            self._lead(hold=1, faults=faults)
            self._await((self.folder / f"at-{self._number}.json").exists, "another step")
        self._let_in = max(
            member for event in self._of("node_started") if event["node"] == joiners[-1] for member in event["members"]
        )
        self._lead(hold=0, faults=faults)
        warm = set(joiners)
        self._await(lambda: warm <= self._nodes_of("node_warm"), f"nodes {joiners} are ready")
        self._lead()
        self._settle(joined=joiners, gone={rank.node for rank in hit})

    def _broken_hints(self, act: Act) -> None:
        said = ("hint_rejected", "hint_missing")
        before = len(self._of(*said))
        match act.how:
            case "half a file":
                self._write_hints('{"apiVersion": "elastic-hints/v1", "defaults": {"gp')
            case "a negative number":
                self._write_hints(self._hints(-1))
            case "no file":
                (self._stage.here / "hints.json").unlink()
        self._await(lambda: len(self._of(*said)) > before, "the hints are refused")
        self._hint(self._wanted)

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

    def _everything(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        since = self._step - self._schedule.every
        self._await(lambda: self._saved() >= since, f"a checkpoint of step {since} or later, held at {self._step}")
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

    def _end(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        self._lead(stop=True, faults=[("kill", act.moment, rank) for rank in ranks])

    # -- how it is led

    def _lead(
        self,
        *,
        hold: int | None = None,
        faults: Iterable[tuple[str, str, Rank]] = (),
        save: bool = False,
        stop: bool = False,
    ) -> None:
        """Tells the script what is wanted from now on; a hold ends with it.

        Args:
            hold: Steps after which rank 0 waits; None lets the training crawl on.
            faults: What goes wrong from the next step on.
            save: Whether rank 0 asks for a checkpoint.
            stop: Whether it ends the training.
        """
        self._number += 1
        texts = [f"{kind}={moment}@{self._first(moment)}:{rank.member}" for kind, moment, rank in faults]
        document = {
            "id": self._number,
            "hold": hold,
            "crawl": hold is None,
            "faults": ",".join(texts),
            "save": save,
            "stop": stop,
            "admit": self._let_in,
        }
        aside = self.folder / "control.new"
        aside.write_text(json.dumps(document))
        aside.replace(self.folder / "control.json")

    def _first(self, moment: str) -> int:
        """Returns from which step on a moment counts: ranks other than 0 may be in the step that is held."""
        return self._step + 1 if moment in LOOP else 0

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

    def _settle(self, *, joined: Iterable[int] = (), gone: Iterable[int] = ()) -> None:
        """Waits until these nodes train and those do not."""
        gone = set(gone)
        nodes = (self._nodes | set(joined)) - gone
        self._await(lambda: gone <= self._nodes_of(*GONE), f"nodes {sorted(gone)} go")
        self._await(lambda: self._formed()[-1] == nodes, f"nodes {sorted(nodes)} train")
        self._nodes = nodes

    def _hint(self, nodes: int) -> None:
        self._wanted = nodes
        self._write_hints(self._hints(nodes * self._schedule.nproc))

    def _hints(self, allowed: int) -> str:
        limit = self._schedule.most * self._schedule.nproc
        gpus = {"guaranteed": 0, "allowed": allowed, "limit": limit}
        return json.dumps({"apiVersion": "elastic-hints/v1", "defaults": {"gpus": gpus, "growAfterSeconds": 0}})

    def _write_hints(self, text: str) -> None:
        """Edits the hints file as an administrator would: aside, then in one move."""
        aside = self._stage.here / "hints.new"
        aside.write_text(text)
        aside.replace(self._stage.here / "hints.json")

    def _options(self) -> tuple[str, ...]:
        schedule = self._schedule
        return (
            f"--nodes=1:{schedule.most}",
            f"--nproc-per-node={schedule.nproc}",
            "--hints=hints.json",
            f"--heartbeat-timeout={HEARTBEAT_SECONDS}",
            f"--checkpoint-every={schedule.every} steps",
        )

    def _arguments(self) -> tuple[str, ...]:
        return (str(self.folder), str(self._schedule.workers), self._schedule.held_at)

    # -- what is seen

    def _await(self, condition: Callable[[], object], what: str) -> None:
        """Waits for something; fails at once if the launcher ends before it."""
        until(lambda: condition() or self.launcher.process.poll() is not None, what, LONG)
        last = (self.launcher.stderr.splitlines() or [""])[-1]
        assert condition(), f"the launcher ended before this: {what}: {last}"

    def _of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def _saved(self) -> int:
        """Returns the step of the last checkpoint."""
        return max((int(event["step"]) for event in self._of("checkpoint_saved")), default=0)

    def _nodes_of(self, *kinds: str) -> set[int]:
        return {event["node"] for event in self._of(*kinds)}

    def _formed(self) -> list[set[int]]:
        """Returns the nodes of each generation so far."""
        return [{member["node"] for member in event["members"]} for event in self._of("generation_formed")]

    def _waiting(self) -> set[int]:
        """Returns the nodes that this run has started and that neither train nor are gone."""
        begun = max(number for number, event in enumerate(self.events) if event.kind == "job_started")
        started = {event["node"] for event in self._events[begun:] if event.kind == "node_started"}
        return started - self._nodes_of(*GONE) - self._nodes

    def rank(self, seat: Seat) -> Rank:
        """Returns who sits on a seat now."""
        members = [member["node"] for member in self._of("generation_formed")[-1]["members"]]
        node = list(dict.fromkeys(members))[seat.age]  # in the order of their ranks
        found = next(one for one in self.launcher.status()["nodes"] if one["node"] == node)
        own = sorted(found["members"], key=lambda member: member["member"])
        return Rank(own[seat.local]["member"], node, own[seat.local]["pid"])


def _stopped(rank: Rank) -> bool:
    try:
        return psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
