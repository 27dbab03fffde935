"""What happens to projects that share GPUs: drawn from a seed, so that a red one is red again.

An act names the job that it hits by a number, whatever jobs there are: it is the place among them, counted round. So a
history can be drawn before anybody knows what it leads to, and played against the pure rounds and against a cluster.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_ACTS, MOST_ACTS = 20, 40
RESTS = (0, 0, 0, 0, 1, 1, 2, 3, 11)
"""Rounds in which nothing else happens after an act; the longest is enough for everything to come to rest."""

KINDS: Mapping[str, int] = {
    "submit": 10,
    "end": 3,
    "machines": 3,
    "deaf": 2,
    "lost": 2,
    "late": 2,
    "again": 2,
    "absurd": 2,
    "restart": 2,
    "projects": 2,
    "broken projects": 1,
    "by hand": 2,
    "hand off": 2,
    "pods": 2,
    "pods gone": 2,
    "stale": 2,
}
"""How often each kind of act is drawn. Deaf: a job ignores its hints, or obeys them again. Lost and late: so its
reports are, or no longer. Again and absurd: an old report, or one that contradicts itself. By hand: somebody writes an
entry for a job, or takes it away. Pods: some that are not elastic. Stale: the cluster can't be read, or again."""
IN_CLUSTER = frozenset(KINDS) - {"pods", "pods gone", "stale"}
"""Kinds that a cluster is put through by documents and reports alone."""
TREES: tuple[tuple[Mapping[str, object], ...], ...] = (
    ({"name": "nlp", "guaranteed": 4}, {"name": "vision", "guaranteed": 4}),
    (
        {"name": "nlp", "guaranteed": 3, "priority": 1},
        {"name": "vision", "guaranteed": 2, "limit": 6},
        {"name": "guest", "weight": 0.5},
    ),
    (
        {"name": "org", "guaranteed": 8, "limit": 10},
        {"name": "nlp", "guaranteed": 3, "parent": "org", "weight": 2},
        {"name": "vision", "guaranteed": 3, "parent": "org", "limit": 5},
        {"name": "lab", "guaranteed": 2, "weight": 3},
    ),
)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens.

    Attributes:
        kind: One of `KINDS`.
        place: Which job or project it hits.
        gpus: A number, where the act has one.
        shape: Of a new job: fewest nodes, further nodes, GPUs of a node, priority.
        rest: Rounds in which nothing else happens afterwards.
    """

    kind: str
    place: int
    gpus: int
    shape: tuple[int, int, int, int]
    rest: int

    def __str__(self) -> str:
        return f"{self.kind} {self.place % 100}"


@dataclass(frozen=True, slots=True)
class History:
    """All that happens, in order.

    Attributes:
        seed: What it was drawn from.
        gpus: GPUs that there are at first.
        projects: As the projects document has them at first.
        acts: What happens.
    """

    seed: int
    gpus: int
    projects: tuple[Mapping[str, object], ...]
    acts: tuple[Act, ...]


def draw(
    seed: int, kinds: frozenset[str] = frozenset(KINDS), most: int = MOST_ACTS, rests: Sequence[int] = RESTS
) -> History:
    """Returns the history of a seed.

    Args:
        seed: Whole number.
        kinds: What may happen.
        most: Acts at most.
        rests: Rounds in which nothing else happens after an act: one of these.
    """
    dice = random.Random(seed)
    weighed = {kind: weight for kind, weight in KINDS.items() if kind in kinds}
    acts = []
    for number in range(dice.randint(min(FIRST_ACTS, most), most)):
        kind = "submit" if number < 2 else dice.choices(list(weighed), list(weighed.values()))[0]
        shape = dice.choice((1, 1, 1, 2, 3)), dice.randrange(5), dice.choice((1, 1, 1, 2)), dice.choice((0, 0, 0, 5))
        acts.append(Act(kind, dice.randrange(10**6), dice.randint(1, 4), shape, dice.choice(rests)))
    return History(seed, dice.randint(4, 16), dice.choice(TREES), tuple(acts))
