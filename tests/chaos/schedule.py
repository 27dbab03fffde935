"""What happens to a job, and when: drawn from a seed, so that a red one is red again.

Everything is placed by steps, by moments of a step, and by who is hit (the node's age and the rank on it), and nothing
by time: an act begins so many steps after the effect of the one before it was seen. Every schedule is meant to end
well: a node that holds the state stays, or the job restarts from the last checkpoint, and fewer are lost than the
launcher puts up with.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

LOOP = ("micro-batch", "reduction", "reduced", "step", "stepped")
EVALUATION = ("sums", "summed")
SAVING = "saving"
"""A moment of rank 0 alone."""
MEETINGS = ("form", "meet")
"""Moments at which a second one is hit when those that are left form another group."""
ENDS = ("end", "sums", "after")
"""Moments after the last step; "after" is in the script's own code."""
BIG = ((4, 1), (5, 1), (2, 2), (3, 2))
SMALL = ((2, 1), (2, 1), (3, 1), (3, 1), (1, 2))
JOINER = "a joiner"
ONE = "one"
BROKEN = ("half a file", "a negative number", "no file")
PROCESSES = ("agent", "torchrun", "rank's parent")
"""Of a node, which are not the script's."""
WIDER = 301
"""From this seed on the acts of `MORE` are drawn too: those before it draw what they always drew."""
ADAPTIVE = 901
"""From this seed on the global batch adapts."""
MOST_NODES = 5
MOST_RANKS = 6
MOST_LOSSES = 3  # in one schedule: the replacement of each later one is put off for longer
MOST_JOINERS = 3  # in one schedule: each is a process that imports torch twice


@dataclass(frozen=True)
class Seat:
    """A rank by where it sits.

    Attributes:
        age: Its node's place among those that train, in the order of their ranks: the oldest first.
        local: Its place on the node.
    """

    age: int
    local: int = 0

    def __str__(self) -> str:
        return f"{self.age}.{self.local}"


@dataclass(frozen=True)
class Act:
    """One thing that happens.

    Attributes:
        kind: One of `KINDS`.
        after: Steps between the effect of the act before and this one.
        moment: The phase in which ranks are hit.
        hit: Who: ranks that train; for a notice, their nodes.
        then: A moment at which the last of them is hit instead.
        to: Nodes that are wanted from then on; 0 where that does not change.
        each: Ranks on each node from then on; 0 where that does not change.
        how: Which of several ways.
    """

    kind: str
    after: int = 1
    moment: str = ""
    hit: tuple[Seat, ...] = ()
    then: str = ""
    to: int = 0
    each: int = 0
    how: str = ""

    def __str__(self) -> str:
        words = [f"+{self.after} {self.kind}", self.how, f"at {self.moment}" if self.moment else ""]
        words += [
            f"of {' and '.join(map(str, self.hit))}" if self.hit else "",
            f"then {self.then}" if self.then else "",
        ]
        words += [f"to {self.to}" if self.to else "", f"x {self.each}" if self.each else ""]
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class Schedule:
    """One job, and all that happens to it.

    Attributes:
        seed: What it was drawn from.
        nodes: How many it starts with.
        most: How many it may have.
        nproc: Ranks on each.
        workers: Loader workers of each rank.
        every: Steps between checkpoints.
        held_at: Where joiners are held until they are let in: "init" or "rehearsal".
        acts: In order; the last one is its end.
        adapts: Whether the global batch does.
        sharded: Whether the ranks of each node share one model.
        batch: The global batch, at first.
        micro: Samples of a micro-batch at most.
    """

    seed: int
    nodes: int
    most: int
    nproc: int
    workers: int
    every: int
    held_at: str
    acts: tuple[Act, ...]
    adapts: bool = False
    sharded: bool = False
    batch: int = 24
    micro: int = 5

    def __str__(self) -> str:
        workers = f", {self.workers} workers each" if self.workers else ""
        acts = "; ".join(map(str, self.acts))
        kind = f", sharded, {self.batch} by {self.micro}" if self.sharded else ", adapts" if self.adapts else ""
        return f"{self.nodes} x {self.nproc} of {self.most}{workers}{kind}, saved every {self.every}: {acts}"


@dataclass(frozen=True)
class World:
    """What a schedule has come to.

    Attributes:
        nodes: That train.
        wanted: By the hints.
        most: Nodes that it may have.
        nproc: Ranks on each.
        losses: Nodes that were lost.
        joiners: Nodes that were let in.
        lost_joiner: Whether one was lost while it was let in: those that follow would soon be given up.
        kinds: Of the acts so far.
    """

    nodes: int
    wanted: int
    most: int
    nproc: int
    losses: int = 0
    joiners: int = 0
    lost_joiner: bool = False
    kinds: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Nodes that wait to be let in."""
        return self.wanted - self.nodes

    def lose(self, count: int) -> World:
        """Returns the world without some of the nodes that trained."""
        return replace(self, nodes=self.nodes - count, losses=self.losses + count)


Drawn = tuple[Act, World]
Kinds = dict[str, tuple[int, Callable[[World], bool], Callable[[random.Random, World], Drawn]]]


def draw(seed: int) -> Schedule:
    """Returns the schedule of a seed."""
    dice = random.Random(f"chaos {seed}")  # seeds next to each other would draw alike
    nodes, nproc = dice.choice(BIG if seed % 3 == 0 else SMALL)
    most = min(max(2, nodes + dice.randint(0, 1)), MOST_NODES, MOST_RANKS // nproc)
    kinds = KINDS if seed < WIDER else {**KINDS, **MORE}
    acts = happen(dice, World(nodes, nodes, most, nproc), kinds, dice.randint(3, 5))
    if seed >= WIDER and acts[-1].moment == "after" and dice.random() < 0.7:
        acts = (*acts[:-1], replace(acts[-1], how="freeze"))
    workers = 2 if dice.random() < 0.4 else 0
    every, held_at = dice.randint(3, 8), dice.choice(("init", "rehearsal"))
    return Schedule(seed, nodes, most, nproc, workers, every, held_at, acts, adapts=seed >= ADAPTIVE)


def happen(dice: random.Random, world: World, kinds: Kinds, count: int) -> tuple[Act, ...]:
    """Draws what happens to a job, its end included.

    Args:
        dice: What draws.
        world: How the job begins.
        kinds: What can happen, as `KINDS`.
        count: How many acts there are before the end.
    """
    acts: list[Act] = []
    for _ in range(count):
        able = [kind for kind, (weight, possible, _) in kinds.items() if weight and possible(world)]
        kind = dice.choices(able, [kinds[kind][0] for kind in able])[0]
        act, world = kinds[kind][2](dice, world)
        acts.append(replace(act, kind=kind, after=dice.randint(1, 6)))
        world = replace(world, kinds=(*world.kinds, kind))
    return (*acts, _end(dice, world))


def draw_kills(seed: int, times: int) -> Schedule:
    """Returns a schedule in which everything is killed again and again, each time to go on at another size."""
    dice = random.Random(f"kills {seed}")
    most = 3
    nodes = dice.randint(1, most)
    world = World(nodes, nodes, most, 1)
    acts = []
    for _ in range(times):
        act, after = _everything(dice, world)
        while after.nodes == world.nodes:
            act, after = _everything(dice, world)
        acts.append(replace(act, kind="everything", after=dice.randint(0, 12)))
        world = after
    workers = dice.choice((0, 2))
    return Schedule(seed, nodes, most, 1, workers, dice.randint(3, 8), "init", (*acts, Act("end")))


def cycle(most: int, times: int) -> Schedule:
    """Returns a schedule of so many resizes or a few more, up to that many nodes and down again, a node at a time."""
    up = [Act("grow", to=most), *[Act("admit", how=ONE)] * (most - 1)]
    down = [Act("shrink", to=nodes) for nodes in range(most - 1, 0, -1)]
    cycles = -(-times // (2 * (most - 1)))
    return Schedule(0, 1, most, 1, 0, 1000, "rehearsal", (*[*up, *down] * cycles, Act("end")))


def _seats(dice: random.Random, world: World, count: int) -> tuple[Seat, ...]:
    """Draws ranks on so many different nodes; the oldest and the youngest are drawn more often than others."""
    ages = dice.sample(range(world.nodes), world.nodes)
    if dice.random() < 0.5:
        ages.sort(key=lambda age: age not in (0, world.nodes - 1))
    return tuple(Seat(age, dice.randrange(world.nproc)) for age in ages[:count])


def _kill(dice: random.Random, world: World) -> Drawn:
    count = 2 if world.nodes > 2 and world.losses + 2 <= MOST_LOSSES and dice.random() < 0.4 else 1
    hit = _seats(dice, world, count)
    moment = dice.choice((*LOOP, *LOOP, *EVALUATION, SAVING))
    if moment == SAVING:
        hit = (Seat(0, 0), *[seat for seat in hit if seat.age != 0][: count - 1])
    then = dice.choice(("", *MEETINGS)) if len(hit) > 1 else ""
    if moment == SAVING and len(hit) > 1 and hit[1].age > 1:
        then = then or MEETINGS[0]  # only the oldest saves, and after it the next
    return Act("", moment=moment, hit=hit, then=then), world.lose(len(hit))


def _freeze(dice: random.Random, world: World) -> Drawn:
    return Act("", moment=dice.choice((*LOOP, *EVALUATION)), hit=_seats(dice, world, 1)), world.lose(1)


def _thaw(dice: random.Random, world: World) -> Drawn:
    return Act("", moment=dice.choice((*LOOP, *EVALUATION)), hit=_seats(dice, world, 1)), world


def _break(dice: random.Random, world: World) -> Drawn:
    """One rank, or all but one, have lost an operation; who gives them the state may die over it."""
    young = Seat(world.nodes - 1, world.nproc - 1)
    if world.nodes > 2 and world.losses < MOST_LOSSES and dice.random() < 0.5:
        return Act("", moment="reduced", hit=(young, Seat(0, 0)), then="give"), world.lose(1)
    moment = dice.choice(("reduced", "summed"))
    ranks = [Seat(age, local) for age in range(world.nodes) for local in range(world.nproc)]
    return Act("", moment=moment, hit=tuple(dice.sample(ranks, dice.randint(1, len(ranks) - 1)))), world


def _notice(dice: random.Random, world: World) -> Drawn:
    how = dice.choice(("", "", "and again", "and kill"))
    count = 2 if how and world.nodes > 2 and world.losses < MOST_LOSSES else 1
    hit = _seats(dice, world, count)
    how = how if count == 2 else ""
    lost = 1 if how == "and kill" else 0
    moment = dice.choice(LOOP) if lost else ""
    left = replace(world, nodes=world.nodes - count + lost)
    return Act("", moment=moment, hit=hit, how=how), left.lose(lost)


def _shrink(dice: random.Random, world: World) -> Drawn:
    to = dice.randint(1, world.wanted - 1)
    return Act("", to=to), replace(world, wanted=to, nodes=min(to, world.nodes))


def _grow(dice: random.Random, world: World) -> Drawn:
    to = dice.randint(world.wanted + 1, world.most)
    return Act("", to=to), replace(world, wanted=to)


def _admit(dice: random.Random, world: World) -> Drawn:
    count = world.missing
    full = replace(world, nodes=world.wanted, joiners=world.joiners + count)
    choices = [("", ""), ("", ""), (JOINER, "form"), (JOINER, "receive")]
    if world.nodes > 1:
        choices += [("", "give"), ("", "form")]
    able = world.losses < MOST_LOSSES and not world.lost_joiner
    how, moment = dice.choice(choices) if able else ("", "")
    if not moment:
        return Act(""), full
    lost = replace(full.lose(1), lost_joiner=how == JOINER)
    if how:
        oldest = Seat(world.nodes, dice.randrange(world.nproc))
        return Act("", moment=moment, hit=(oldest,), how=how), lost
    hit = (Seat(0, 0),) if moment == "give" else _seats(dice, world, 1)
    return Act("", moment=moment, hit=hit), lost


def _broken(dice: random.Random, world: World) -> Drawn:
    return Act("", how=dice.choice(BROKEN)), world


def _same(dice: random.Random, world: World) -> Drawn:
    return Act(""), world


def _launcher(dice: random.Random, world: World) -> Drawn:
    """It is killed while the training stands at a step's beginning, or in a moment of a step."""
    moment = dice.choice(("", *LOOP))
    return Act("", moment=moment, hit=_seats(dice, world, 1) if moment else ()), world


def _everything(dice: random.Random, world: World) -> Drawn:
    moment = dice.choice((*LOOP, *EVALUATION, SAVING))
    hit = (Seat(0, 0),) if moment == SAVING else _seats(dice, world, 1)
    to = dice.randint(1, world.most)
    return Act("", moment=moment, hit=hit, to=to), replace(world, nodes=to, wanted=to, losses=0, lost_joiner=False)


def _process(dice: random.Random, world: World) -> Drawn:
    return Act("", hit=_seats(dice, world, 1), how=dice.choice(PROCESSES)), world.lose(1)


def _only_rank(dice: random.Random, world: World) -> Drawn:
    """A rank of the only node freezes for good: the job restarts from the last checkpoint."""
    return Act("", moment=dice.choice(LOOP), hit=_seats(dice, world, 1)), replace(world, losses=0, lost_joiner=False)


def _all_told(dice: random.Random, world: World) -> Drawn:
    return Act(""), replace(world, losses=0, lost_joiner=False)


def _end(dice: random.Random, world: World) -> Act:
    after = dice.randint(1, 8)
    if world.nodes == 1 or world.losses >= MOST_LOSSES or dice.random() < 0.5:
        return Act("end", after)
    return Act("end", after, moment=dice.choice(ENDS), hit=_seats(dice, world, 1))


def _losable(world: World) -> bool:
    return world.nodes > 1 and world.losses < MOST_LOSSES


def _once(*kinds: str) -> Callable[[World], bool]:
    return lambda world: not set(kinds) & set(world.kinds)


_restarts = _once("everything", "launcher", "launcher over broken hints")


KINDS: Kinds = {
    "kill": (6, _losable, _kill),
    "freeze": (1, _losable, _freeze),
    "freeze and thaw": (1, lambda world: world.nodes > 1, _thaw),
    "break": (2, lambda world: world.nodes * world.nproc > 1, _break),
    "notice": (3, lambda world: world.nodes > 1, _notice),
    "shrink": (2, lambda world: world.wanted > 1, _shrink),
    "grow": (3, lambda world: world.wanted < world.most, _grow),
    "admit": (6, lambda world: 0 < world.missing <= MOST_JOINERS - world.joiners, _admit),
    "broken hints": (1, _once("broken hints"), _broken),
    "full disk": (1, _once("full disk"), _same),
    "launcher": (1, lambda world: _restarts(world) and world.missing == 0, _launcher),
    "everything": (1, _restarts, _everything),
    "end": (0, lambda world: True, lambda dice, world: (_end(dice, world), world)),
}
"""For each kind of act: its weight, whether it can happen in a world, and how its details are drawn."""


def _can_freeze_all(world: World) -> bool:
    return world.nodes == 1 and world.missing == 0 and "freeze the only one" not in world.kinds


def _can_tell_all(world: World) -> bool:
    return world.missing == 0 and "notice to all" not in world.kinds


MORE: Kinds = {
    "kill process": (5, _losable, _process),
    "freeze the only one": (8, _can_freeze_all, _only_rank),
    "notice to all": (3, _can_tell_all, _all_told),
    "launcher over broken hints": (2, lambda world: _restarts(world) and world.missing == 0, _broken),
}
"""What was added later, as `KINDS`."""
