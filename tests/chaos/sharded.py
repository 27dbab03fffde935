"""What happens to a job whose model is sharded over the ranks of each node, drawn from a seed.

That is all that happens to other jobs, processes that are killed on two nodes at once, and a stop after which the job
resumes on nodes of another size.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.chaos import schedule
from tests.chaos.schedule import MORE, MOST_LOSSES, Act, Drawn, Kinds, Schedule, Seat, World, happen

FIRST = 1001
"""From this seed on."""
SHAPES = ((1, 2), (2, 2), (2, 2), (3, 2), (3, 2), (3, 2), (2, 4))
SIZES = (1, 2, 4)
"""Ranks on each node after a stop."""
MOST_RANKS = 8
BATCHES = ((24, 5), (25, 3), (9, 2), (3, 2), (60, 7))
"""Global batches and micro-batches: also fewer samples than ranks."""
STOP = "stop"


def draw(seed: int) -> Schedule:
    """Returns the schedule of a seed."""
    dice = random.Random(f"fully sharded {seed}")
    nodes, nproc = dice.choice(SHAPES)
    most = min(max(2, nodes + dice.randint(0, 1)), MOST_RANKS // nproc)
    acts = happen(dice, World(nodes, nodes, most, nproc), KINDS, dice.randint(3, 4))
    workers = 2 if dice.random() < 0.2 else 0
    every, held_at = dice.randint(3, 8), dice.choice(("init", "rehearsal"))
    batch, micro = dice.choice(BATCHES)
    return Schedule(seed, nodes, most, nproc, workers, every, held_at, acts, sharded=True, batch=batch, micro=micro)


def _processes(dice: random.Random, world: World) -> Drawn:
    """Those of one node are killed, or of two at once."""
    act, after = MORE["kill process"][2](dice, world)
    if after.nodes == 1 or after.losses == MOST_LOSSES or dice.random() < 0.2:
        return act, after
    other = dice.choice([age for age in range(world.nodes) if age != act.hit[0].age])
    return replace(act, hit=(*act.hit, Seat(other))), after.lose(1)


def _stop(dice: random.Random, world: World) -> Drawn:
    """The job is stopped, and goes on with as many ranks on each node, or with more or fewer."""
    each = dice.choice((world.nproc, *SIZES))
    most = min(world.most, MOST_RANKS // each)
    to = dice.randint(1, most)
    after = replace(world, nodes=to, wanted=to, most=most, nproc=each, losses=0, lost_joiner=False)
    return Act("", to=to, each=each), after


KINDS: Kinds = {
    **schedule.KINDS,
    **MORE,
    "kill": (9, *schedule.KINDS["kill"][1:]),
    "freeze": (2, *schedule.KINDS["freeze"][1:]),
    "freeze and thaw": (2, *schedule.KINDS["freeze and thaw"][1:]),
    "break": (3, *schedule.KINDS["break"][1:]),
    "freeze the only one": (4, *MORE["freeze the only one"][1:]),
    "notice to all": (1, *MORE["notice to all"][1:]),
    "kill process": (7, MORE["kill process"][1], _processes),
    STOP: (4, lambda world: world.missing == 0 and STOP not in world.kinds, _stop),
}
"""As `tests.chaos.schedule.KINDS`."""
