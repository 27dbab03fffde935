"""Which launches there are: each is wholly determined by its number, so that any of them can be run again alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

COUNT = 100
STARTING = ("claimed", "job_started", "node_started", "agent_started", "node_warm")
"""Where a launch is awaited to stand: "claimed" is before its coordinator takes signals; at "agent_started" the first
node has told its process id, and not yet reached the launcher; the others are events."""
TRAINING = ("generation_formed", "progress")
CODES = {
    "the script stops it": 0,
    "its epochs are over": 0,
    "an exception on a rank": 1,
    "a rank kills itself": 0,
    "a rank is killed": 0,
    "a loader worker is killed": 1,
    "an agent is killed": 0,
    "a starting agent is killed, then the script stops it": 0,
    "SIGINT": 130,
    "SIGINT, again at once": 130,
    "SIGINT, again when the job is over": 130,
    "SIGTERM": 75,
    "SIGKILL": -9,
}
"""The exit code of each end; the signals are the launcher's."""
LOSSES = ("a rank kills itself", "a rank is killed", "an agent is killed")
"""Ends that cost a node: the others train on, or all restart, and then the script stops."""


@dataclass(frozen=True)
class Case:
    """One launch and how it ends.

    Attributes:
        number: From 1 on.
        kind: Which of `KINDS` it is.
        end: How it ends, one of `CODES`.
        moment: What is awaited before that (`STARTING`, `TRAINING`, other events); "" when the script itself does it.
        step: The step in which the script does it, or that progress has to come to.
        rank: Rank, or index of the node, that it happens to.
        late: Whether the script does it after the backward pass instead of before.
        nodes: How many it starts with.
        nproc_per_node: Ranks on each.
        workers: Loader workers of each rank.
        change: What resizes the job before it ends: "grow", "shrink", "notice", or "".
        to: Nodes after that.
        orphan_timeout: Seconds without a launcher after which nodes leave.
        long_path: Whether the nodes' temporary folders can't be in the work directory.
    """

    number: int
    kind: str
    end: str
    moment: str = ""
    step: int = 0
    rank: int = 0
    late: bool = False
    nodes: int = 2
    nproc_per_node: int = 1
    workers: int = 0
    change: str = ""
    to: int = 0
    orphan_timeout: int = 60
    long_path: bool = False

    @property
    def exit_code(self) -> int:
        """What the launcher ends with."""
        return CODES[self.end]

    @property
    def details(self) -> str:
        """The case in words."""
        words = [f"{self.nodes} x {self.nproc_per_node} ranks"]
        if self.workers:
            words.append(f"{self.workers} workers each")
        if self.change:
            words.append(f"{self.change} to {self.to}")
        what = self.end
        if self.end in ("an exception on a rank", "a rank kills itself"):
            what += f", rank {self.rank}, step {self.step}, {'after' if self.late else 'before'} the backward pass"
        elif self.end == "a loader worker is killed":
            what += f", at sample {self.step}"
        elif "is killed" in self.end and not self.change:
            what += f", number {self.rank}"
        if self.moment:
            what += f", at {self.moment}" + (f" of step {self.step}" if self.moment == "progress" else "")
        words.append(what)
        if self.end == "SIGKILL":
            words.append(f"orphan timeout {self.orphan_timeout} s")
        if self.long_path:
            words.append("long path")
        return "; ".join(words)


def case(number: int) -> Case:
    """Returns the case of that number."""
    dice = random.Random(f"launch {number}")  # numbers next to each other would draw alike
    kind = list(KINDS)[(number - 1) % len(KINDS)]
    base = Case(number, kind, "", nodes=dice.randint(1, 3), long_path=dice.random() < 0.3)
    return KINDS[kind](base, dice)


def _at(base: Case, dice: random.Random, *moments: str) -> Case:
    return replace(base, moment=dice.choice(moments), step=dice.randint(1, 120))


def _anywhere(base: Case, dice: random.Random) -> Case:
    moments = (*STARTING, *TRAINING)
    return _at(base, dice, moments[(base.number - 1) % len(moments)])  # in turn: within a kind, each once in seven


def _signalled(base: Case, dice: random.Random, *ends: str) -> Case:
    """Draws one of the ends; what a killed launcher leaves alone goes on for longer than an import of torch takes."""
    return replace(base, end=dice.choice(ends), orphan_timeout=dice.randint(6, 9))


def _well(base: Case, dice: random.Random) -> Case:
    if dice.random() < 0.5:
        return replace(base, end="its epochs are over", step=dice.randint(1, 20))
    return replace(_at(base, dice, *TRAINING), end="the script stops it")


def _in_script(base: Case, dice: random.Random, end: str) -> Case:
    rank = dice.randrange(base.nodes * base.nproc_per_node)
    return replace(base, end=end, rank=rank, step=dice.randint(0, 60), late=dice.choice((True, False)))


def _exception(base: Case, dice: random.Random) -> Case:
    return _in_script(replace(base, nodes=dice.randint(2, 3)), dice, "an exception on a rank")


def _rank_killed(base: Case, dice: random.Random) -> Case:
    if dice.random() < 0.5:
        return _in_script(replace(base, nodes=dice.randint(2, 3)), dice, "a rank kills itself")
    return replace(_at(base, dice, *TRAINING), end="a rank is killed", rank=dice.randrange(base.nodes))


def _interrupted(base: Case, dice: random.Random) -> Case:
    return _signalled(
        _anywhere(base, dice),
        dice,
        "SIGINT",
        "SIGINT, again at once",
        "SIGINT, again when the job is over",
    )


def _terminated(base: Case, dice: random.Random) -> Case:
    return _signalled(_anywhere(base, dice), dice, "SIGTERM")


def _launcher_killed(base: Case, dice: random.Random) -> Case:
    return _signalled(_anywhere(base, dice), dice, "SIGKILL")


def _agent_killed(base: Case, dice: random.Random) -> Case:
    base = replace(base, rank=dice.randrange(base.nodes))
    if dice.random() < 0.3:
        end = "a starting agent is killed, then the script stops it"
        return replace(base, end=end, moment="node_started", step=dice.randint(1, 60))
    return replace(_at(base, dice, *TRAINING), end="an agent is killed")


def _with_workers(base: Case, dice: random.Random) -> Case:
    base = replace(base, nodes=dice.randint(1, 2), nproc_per_node=2, workers=dice.randint(1, 2))
    end = dice.choice(("stop", "exception", "worker", "rank", "signal", "signal"))
    if end == "exception":
        return _in_script(base, dice, "an exception on a rank")
    if end == "worker":
        return replace(base, end="a loader worker is killed", step=dice.randrange(32))
    base = _at(base, dice, "node_warm", *TRAINING) if end == "signal" else _at(base, dice, *TRAINING)
    if end == "signal":
        return _signalled(base, dice, "SIGINT", "SIGTERM", "SIGKILL")
    return replace(base, end="the script stops it" if end == "stop" else "a rank is killed", rank=dice.randrange(2))


def _resized(base: Case, dice: random.Random) -> Case:
    turn = base.number // len(KINDS)  # the two that matter come in turn too, in all combinations
    change = ("grow", "shrink", "notice")[turn % 3]
    moments = {
        "grow": ("hint_applied", "node_started", "node_warm", "generation_formed"),
        "shrink": ("hint_applied", "node_left", "generation_formed"),
        "notice": ("notice", "node_left", "generation_formed"),
    }[change]
    nodes = dice.randint(1, 2) if change == "grow" else dice.randint(2, 3)
    to = dice.randint(nodes + 1, 3) if change == "grow" else dice.randint(1, nodes - 1)
    to = nodes - 1 if change == "notice" else to
    base = replace(_at(base, dice, *moments), nodes=nodes, change=change, to=to, step=0)
    end = ("the script stops it", "a rank is killed", "SIGINT", "SIGTERM", "SIGKILL")[turn % 5]
    return _signalled(base, dice, end)


KINDS: dict[str, Callable[[Case, random.Random], Case]] = {
    "ends well": _well,
    "script fails": _exception,
    "rank killed": _rank_killed,
    "interrupted": _interrupted,
    "terminated": _terminated,
    "launcher killed": _launcher_killed,
    "agent killed": _agent_killed,
    "loader workers": _with_workers,
    "resize": _resized,
}
"""How the details of each kind are drawn; the kinds come in turn."""
