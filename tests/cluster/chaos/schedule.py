"""What happens to a job on the cluster, drawn from a seed: what processes suffer, and what its pods and machines do.

One machine holds the launcher and has room for all; the other has room for one node, and holds one when a job begins.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.chaos import schedule
from tests.chaos.schedule import Act, Drawn, Kinds, Schedule, Seat, World, happen

SHAPES = ((2, 1), (2, 1), (3, 1), (3, 1), (2, 2))
MOST_NODES, MOST_RANKS = 4, 4  # each is a pod that imports torch on a machine of few cores
TOLD = ("deleted", "evicted")
GOES = ("killed", "evicted")
HARMLESS = {"grow", "admit", "broken hints", "launcher"}
"""After these, as long as nobody was lost, the second machine holds the node that it began with."""


def draw(seed: int) -> Schedule:
    """Returns the schedule of a seed."""
    dice = random.Random(f"nodes {seed}")
    nodes, nproc = dice.choice(SHAPES)
    most = min(nodes + dice.randint(0, 1), MOST_NODES, MOST_RANKS // nproc)
    acts = happen(dice, World(nodes, nodes, most, nproc), KINDS, dice.randint(2, 3))
    workers = 2 if dice.random() < 0.2 else 0
    held_at = dice.choice(("init", "rehearsal"))
    return Schedule(seed, nodes, most, nproc, workers, dice.randint(3, 8), held_at, acts)


def _seat(dice: random.Random, world: World) -> tuple[Seat, ...]:
    return (Seat(dice.randrange(world.nodes)),)


def _notice(dice: random.Random, world: World) -> Drawn:
    act = Act("", hit=_seat(dice, world), how=dice.choice(TOLD))
    return act, replace(world, nodes=world.nodes - 1)


def _forced(dice: random.Random, world: World) -> Drawn:
    return Act("", hit=_seat(dice, world)), world.lose(1)


def _cut(dice: random.Random, world: World) -> Drawn:
    return Act(""), world.lose(1)


def _launcher(dice: random.Random, world: World) -> Drawn:
    return Act("", how=dice.choice(GOES)), world


def _losable(world: World) -> bool:
    return world.nodes > 1 and world.losses < schedule.MOST_LOSSES


def _first_loss(world: World) -> bool:
    return world.nodes > 1 and world.losses == 0 and set(world.kinds) <= HARMLESS


PROCESSES = ("kill", "freeze", "break", "shrink", "grow", "admit", "broken hints", "end")
KINDS: Kinds = {
    **{kind: schedule.KINDS[kind] for kind in PROCESSES},
    "kill": (3, *schedule.KINDS["kill"][1:]),
    "notice": (5, lambda world: world.nodes > 1, _notice),
    "forced deletion": (4, _losable, _forced),
    "cut": (4, _first_loss, _cut),
    "launcher": (5, schedule.KINDS["launcher"][1], _launcher),
}
"""As `tests.chaos.schedule.KINDS`: of those that need no more than the job's own processes, and the cluster's."""
