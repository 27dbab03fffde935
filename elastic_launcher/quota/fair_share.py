"""Divides GPUs among projects: guarantees first, then what is over quota by priority and weight, level by level.

At each level a claim first gets what it asks for within its guarantee. What is left goes to the highest priority, and
within a priority in proportion to the weights; what one can't use of its part goes to the others. Parts are rounded
down, and the GPUs that remain go, one each, to the largest fractions (ties by name). The share of a parent is then
divided in the same way among its children and its own jobs. The rule is KAI's, but for one thing: guarantees that add
up to more than there is are cut in proportion, because no GPU is promised twice.

Invariants:

* The shares of siblings add up to at most their parent's share, those of the roots to at most the total.
* No share is above the demand of its subtree, above its limit or above a limit of an ancestor; what can't be taken
  away (``held``) is the only exception.
* Demand within the guarantee is met in full, unless guarantees and ``held`` of its level add up to more than there is.
* No GPU is left over while a claim with a weight asks for more and has room below all limits.
* The shares do not depend on the order of the claims.
* A claim's share never falls because its own demand rises. It may fall when the total rises, by at most one GPU for
  each level: that is the price of largest remainders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Claim:
    """What one project or department claims. All counts are whole GPUs.

    Attributes:
        name: Its name; no other claim has it.
        demand: What its own jobs can use, together with its pods that are not elastic; without its children's.
        guaranteed: What it gets before anybody gets something over quota; None for as much as it asks for.
        limit: The most that it and all below it may have, or None.
        weight: Its part of what is over quota, as written in decimal; with 0 it gets nothing over quota.
        priority: What is over quota goes to the highest priority first.
        parent: The claim whose share it is a part of, or None.
        held: The part of its demand that nobody can take away: pods that are not elastic. Others get fair shares of
            what is really left, where that exceeds its own share.
    """

    name: str
    demand: int = 0
    guaranteed: int | None = 0
    limit: int | None = None
    weight: float = 1.0
    priority: int = 0
    parent: str | None = None
    held: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """What competes for the GPUs of one level: a claim with all below it, or the own jobs of a parent."""

    name: str
    held: int
    usable: int
    guaranteed: int | None
    weight: Fraction
    priority: int

    @property
    def within(self) -> int:
        """What it can use within its guarantee."""
        return self.usable if self.guaranteed is None else min(self.guaranteed, self.usable)


@dataclass(frozen=True, slots=True)
class _Bowl:
    """Takes ``level * weight`` GPUs, but at least ``low`` and at most ``high``."""

    name: str
    weight: Fraction
    low: int
    high: int


def fair_share(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Returns the share of each claim, that of a parent with those of all below it.

    What a parent keeps for its own jobs is its share less the shares of its children. Its own jobs compete with the
    children like one more child of weight 1 and priority 0, with the part of the guarantee that no child has.

    Args:
        total: GPUs to divide.
        claims: In any order.

    Raises:
        ValueError: If a count or a weight is negative, a name is there twice, or a parent is unknown or in a circle.
    """
    if total < 0:
        raise ValueError(f"total is {total}; it must be 0 or more")
    children, ordered = _tree(claims)
    parts: dict[str, _Part] = {}
    for claim in reversed(ordered):
        parts[claim.name] = _subtree(claim, [parts[child.name] for child in children.get(claim.name, ())])
    shares = _divide(total, [parts[claim.name] for claim in children.get(None, ())])
    for claim in ordered:
        if claim.name in children:
            below = [parts[child.name] for child in children[claim.name]]
            divided = _divide(shares[claim.name], [*below, _own(claim, below)])
            shares.update((part.name, divided[part.name]) for part in below)
    return {claim.name: shares[claim.name] for claim in claims}


def _tree(claims: Sequence[Claim]) -> tuple[dict[str | None, list[Claim]], list[Claim]]:
    """Returns the children of each parent, and all claims with parents before their children."""
    names = {claim.name for claim in claims}
    children: dict[str | None, list[Claim]] = {}
    for claim in claims:
        if min(claim.demand, claim.guaranteed or 0, claim.limit or 0, claim.held, claim.weight) < 0:
            raise ValueError(f"a number of claim {claim.name!r} is negative; all must be 0 or more")
        if claim.parent is not None and claim.parent not in names:
            raise ValueError(f"the parent of claim {claim.name!r} is {claim.parent!r}, and no claim has that name")
        children.setdefault(claim.parent, []).append(claim)
    if len(names) != len(claims):
        raise ValueError("two claims have the same name; each must have its own")
    ordered = list(children.get(None, ()))
    for claim in ordered:  # it grows by the children of those that are in it
        ordered += children.get(claim.name, ())
    if len(ordered) != len(claims):
        raise ValueError("a claim is its own ancestor; parents must not form a circle")
    return children, ordered


def _subtree(claim: Claim, below: Sequence[_Part]) -> _Part:
    """Returns a claim as its level sees it, with all that is below it."""
    held = claim.held + sum(part.held for part in below)
    usable = max(claim.demand, claim.held) + sum(part.usable for part in below)
    if claim.limit is not None:
        usable = min(usable, claim.limit)
    weight = Fraction(str(claim.weight))  # 0.1 is a tenth
    if not weight and claim.guaranteed is not None:  # what it can't get, its parent must not ask for
        usable = min(usable, claim.guaranteed)
    return _Part(claim.name, held, max(usable, held), claim.guaranteed, weight, claim.priority)


def _own(claim: Claim, below: Sequence[_Part]) -> _Part:
    """Returns a parent's own jobs as its children's level sees them."""
    guaranteed = claim.guaranteed
    if guaranteed is not None:
        promised = [part.guaranteed for part in below if part.guaranteed is not None]
        guaranteed = max(0, guaranteed - sum(promised)) if len(promised) == len(below) else 0
    return _Part(claim.name, claim.held, max(claim.demand, claim.held), guaranteed, Fraction(1), 0)


def _divide(total: int, parts: Sequence[_Part]) -> dict[str, int]:
    """Returns the shares of one level."""
    if sum(part.held for part in parts) > total:
        return _pour(total, [_Bowl(part.name, Fraction(part.held), 0, part.held) for part in parts])
    if sum(max(part.held, part.within) for part in parts) > total:
        bowls = []
        for part in parts:
            weight = Fraction(total if part.guaranteed is None else part.guaranteed)
            bowls.append(_Bowl(part.name, weight, part.held, max(part.held, part.within)))
        return _pour(total, bowls)
    shares = {part.name: part.within for part in parts}
    left = total - sum(shares.values())
    reserved = sum(max(0, part.held - part.within) for part in parts)
    for _, group in groupby(sorted(parts, key=_precedence), key=lambda part: part.priority):
        bowls = [_over_quota(part) for part in group]
        reserved -= sum(bowl.low for bowl in bowls)
        poured = _pour(min(left - reserved, sum(bowl.high for bowl in bowls)), bowls)
        left -= sum(poured.values())
        for name, gpus in poured.items():
            shares[name] += gpus
    return shares


def _precedence(part: _Part) -> int:
    return -part.priority


def _over_quota(part: _Part) -> _Bowl:
    """Returns what a part can get beyond its guarantee."""
    low = max(0, part.held - part.within)
    return _Bowl(part.name, part.weight, low, part.usable - part.within if part.weight else low)


def _pour(amount: int, bowls: Sequence[_Bowl]) -> dict[str, int]:
    """Returns how many whole GPUs each bowl takes when an amount is poured into all of them.

    Args:
        amount: From the sum of all ``low`` to the sum of all ``high``.
        bowls: In any order.
    """
    level = _level(amount, bowls)
    exact = {bowl.name: min(max(level * bowl.weight, Fraction(bowl.low)), Fraction(bowl.high)) for bowl in bowls}
    whole = {name: int(share) for name, share in exact.items()}
    fractions = [name for name, share in exact.items() if share != whole[name]]
    fractions.sort(key=lambda name: (whole[name] - exact[name], name))
    for name in fractions[: amount - sum(whole.values())]:
        whole[name] += 1
    return whole


def _level(amount: int, bowls: Iterable[_Bowl]) -> Fraction:
    """Returns the level at which bowls hold an amount together."""
    poured = level = rate = Fraction(0)
    bends: list[tuple[Fraction, Fraction]] = []
    for bowl in bowls:
        poured += bowl.low
        if bowl.weight:
            bends += [(bowl.low / bowl.weight, bowl.weight), (bowl.high / bowl.weight, -bowl.weight)]
    for bend, change in sorted(bends):
        reached = poured + rate * (bend - level)
        if reached >= amount:
            break
        poured, level, rate = reached, bend, rate + change
    return level + (amount - poured) / rate if rate else level
