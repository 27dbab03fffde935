"""Leads a job through what happens to it, wherever it runs: holds the training, and awaits the effect of each act."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.events import Event, EventFollower
from tests.chaos.schedule import JOINER, LOOP, ONE, SAVING, Act, Schedule, Seat
from tests.support.launches import until
from tests.support.places import SCRIPTS

SCRIPT = SCRIPTS / "led_train.py"
LONG = 240.0  # seconds for what comes within a few, or within a minute in pods, on a machine that is busy
GONE = ("node_lost", "node_failed", "node_left")
EVERYBODY = 10**9  # a member's number that none has


@dataclass(frozen=True)
class Rank:
    """A rank as it is when the training is held; its process where that is seen."""

    member: int
    node: int
    pid: int = 0


class Lead:
    """Leads one job through its schedule; what is done to it from the outside depends on where it runs.

    Args:
        work_dir: The launcher's.
        folder: In which the script finds what is wanted, and writes what it did.
        schedule: What is to happen.
        say: Takes a line about each act.
        then: Is called when the effect of an act was seen.

    Attributes:
        hints: What `--hints` names.
        heartbeat_seconds: After which a rank without a sign of life is lost that others wait for.
        silence_seconds: After which any is.
    """

    hints = "hints.json"
    heartbeat_seconds = 3
    silence_seconds = 12

    def __init__(
        self,
        work_dir: Path,
        folder: Path,
        schedule: Schedule,
        say: Callable[[str], None],
        then: Callable[[Act], None] = lambda act: None,
    ) -> None:
        self.folder = folder
        self._schedule = schedule
        self._say = say
        self._then = then
        self._follower = EventFollower(work_dir / "events.jsonl")
        self._events: list[Event] = []
        self._number = 0
        self._wanted = schedule.nodes
        self._nproc = schedule.nproc
        self._let_in = schedule.nodes * schedule.nproc
        self._nodes: set[int] = set()
        self._step = 0

    @property
    def events(self) -> list[Event]:
        """All events of the job so far."""
        self._events += self._follower.poll()
        return self._events

    def _act_out(self) -> None:
        """Has all of it happen to the job, from when its nodes train."""
        nodes = self._schedule.nodes
        self._await(lambda: self._formed() and len(self._formed()[-1]) == nodes, "all nodes")
        self._nodes = self._formed()[-1]
        for act in self._schedule.acts:
            self._hold(act.after, f"the step at which to {act.kind}")
            self._say(f"step {self._step}: {act}")
            getattr(self, "_" + act.kind.replace(" ", "_"))(act)
            self._then(act)

    # -- what happens

    def _kill(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        at_once = self._arm_second(act, ranks)
        self._lead(faults=[("kill", act.moment, rank) for rank in at_once], save=act.moment == SAVING)
        self._settle(gone={rank.node for rank in ranks})

    def _freeze(self, act: Act) -> None:
        rank = self.rank(act.hit[0])
        self._lead(faults=[("freeze", act.moment, rank)])
        self._settle(gone={rank.node})

    def _break(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        before = len(self._formed())
        at_once = self._arm_second(act, ranks)
        self._lead(faults=[("break", act.moment, rank) for rank in at_once])
        self._await(lambda: len(self._formed()) > before, "another generation")
        if act.then:
            self._see_giver_go(ranks[-1])
        self._settle(gone={ranks[-1].node} if act.then else ())

    def _arm_second(self, act: Act, ranks: list[Rank]) -> list[Rank]:
        """Returns the ranks that are hit at once. If one is to die while the others recover, the last of them is.

        That one reads of it ahead. It may be in a step that it began before this was written: all have read it when
        the step after that one is reduced.
        """
        if not act.then:
            return ranks
        self._hold(2, "the step after next", [("kill", act.then, ranks[-1])])
        return ranks[:-1]

    def _see_giver_go(self, giver: Rank) -> None:
        """Has a rank go that is to die as it gives its state, also where no other rank lacks it."""
        self._lead(hold=1)
        self._await((self.folder / f"at-{self._number}.json").exists, "a step of the next generation")
        if giver.node not in self._nodes_of(*GONE):  # nobody had got ahead of the break
            self._lead(faults=[("kill", "micro-batch", giver)])

    def _notice(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        told = ranks[:1] if act.how == "and kill" else ranks
        for rank in told:
            self._tell(act, rank.node)
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

    def _freeze_the_only_one(self, act: Act) -> None:
        """Has a rank of the only node stand still, and the job restarts."""
        rank = self.rank(act.hit[0])
        self._restart(faults=[("freeze", act.moment, rank)])
        assert rank.node in self._nodes_of("node_lost"), f"node {rank.node} is not said to be lost"

    def _notice_to_all(self, act: Act) -> None:
        """Has all nodes told to go: others take their places."""
        before = set(self._nodes)
        for node in sorted(before):
            self._tell(act, node)
        self._await(lambda: before <= self._nodes_of("notice"), "notice to all nodes")
        self._restart()

    def _restart(self, faults: Iterable[tuple[str, str, Rank]] = ()) -> None:
        """Waits until other nodes train than those of before, as many as are wanted."""
        before = set(self._nodes)
        self._let_in = EVERYBODY
        self._lead(faults=faults)
        self._await(
            lambda: len(self._formed()[-1]) == self._wanted and not self._formed()[-1] & before, "other nodes train"
        )
        self._nodes = self._formed()[-1]
        self._let_in = max(member for event in self._of("node_started") for member in event["members"])

    def _broken_hints(self, act: Act) -> None:
        self._break_hints(act)
        self._hint(self._wanted)

    def _break_hints(self, act: Act) -> None:
        """Breaks the hints, and waits until they are refused."""
        said = ("hint_rejected", "hint_missing")
        before = len(self._of(*said))
        match act.how:
            case "half a file":
                self._write_hints('{"apiVersion": "elastic-hints/v1", "defaults": {"gp')
            case "a negative number":
                self._write_hints(self._hints(-1))
            case "no file":
                self._remove_hints()
        self._await(lambda: len(self._of(*said)) > before, "the hints are refused")

    def _end(self, act: Act) -> None:
        ranks = [self.rank(seat) for seat in act.hit]
        self._lead(stop=True, faults=[(act.how or "kill", act.moment, rank) for rank in ranks])

    # -- where the job runs

    def _tell(self, act: Act, node: int) -> None:
        """Gives a node notice."""
        raise NotImplementedError

    def _write_hints(self, text: str) -> None:
        """Edits the hints as an administrator would."""
        raise NotImplementedError

    def _remove_hints(self) -> None:
        raise NotImplementedError

    def _over(self) -> str | None:
        """Returns the job's last words if it has ended."""
        raise NotImplementedError

    def _options(self) -> tuple[str, ...]:
        schedule = self._schedule
        return (
            f"--nodes=1:{schedule.most}",
            f"--nproc-per-node={self._nproc}",
            f"--hints={self.hints}",
            f"--heartbeat-timeout={self.heartbeat_seconds}",
            f"--silence-timeout={self.silence_seconds}",
            "--progress-timeout=600",  # the training stands while nodes start
            f"--checkpoint-every={schedule.every} steps",
        )

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

    def _hold(self, after: int, what: str, faults: Iterable[tuple[str, str, Rank]] = ()) -> None:
        """Holds the training some steps further on."""
        self._lead(hold=after, faults=faults)
        at = self.folder / f"at-{self._number}.json"
        self._await(at.exists, what)
        self._step = json.loads(at.read_text())["step"]

    def _first(self, moment: str) -> int:
        """Returns from which step on a moment counts: ranks other than 0 may be in the step that is held."""
        return self._step + 1 if moment in LOOP else 0

    def _settle(self, *, joined: Iterable[int] = (), gone: Iterable[int] = ()) -> None:
        """Waits until these nodes train and those do not."""
        gone = set(gone)
        nodes = (self._nodes | set(joined)) - gone
        self._await(lambda: gone <= self._nodes_of(*GONE), f"nodes {sorted(gone)} go")
        self._await(lambda: self._formed()[-1] == nodes, f"nodes {sorted(nodes)} train")
        self._nodes = nodes

    def _hint(self, nodes: int) -> None:
        self._wanted = nodes
        self._write_hints(self._hints(nodes * self._nproc))

    def _hints(self, allowed: int) -> str:
        limit = self._schedule.most * self._nproc
        gpus = {"guaranteed": 0, "allowed": allowed, "limit": limit}
        return json.dumps({"apiVersion": "elastic-hints/v1", "defaults": {"gpus": gpus, "growAfterSeconds": 0}})

    def _arguments(self) -> tuple[str, ...]:
        schedule = self._schedule
        kind = "sharded" if schedule.sharded else "adapts" if schedule.adapts else "fixed"
        sizes = str(schedule.batch), str(schedule.micro)
        return (str(self.folder), str(schedule.workers), schedule.held_at, kind, *sizes)

    # -- what is seen

    def _await(self, condition: Callable[[], object], what: str) -> None:
        """Waits for something; fails at once if the job ends before it."""
        until(lambda: condition() or self._over() is not None, what, LONG)
        assert condition(), f"the launcher ended before this: {what}: {self._over()}"

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
        members = self._of("generation_formed")[-1]["members"]
        node = list(dict.fromkeys(member["node"] for member in members))[seat.age]  # in the order of their ranks
        own = sorted(member["member"] for member in members if member["node"] == node)
        return Rank(own[seat.local], node)
