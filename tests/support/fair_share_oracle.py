"""Fair shares worked out slowly, GPU by GPU, and written apart from the product: what its function is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from elastic_launcher.quota.fair_share import Claim


def shares(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Returns the share of each claim."""
    found: dict[str, int] = {}

    def go_down(parent: Claim | None, gpus: int) -> None:
        below = [one for one in claims if one.parent == (parent.name if parent else None)]
        rows = {one.name: _row(one, claims) for one in below}
        if parent is not None:
            rows[parent.name] = _own_row(parent, below)
        given = _level(gpus, rows)
        for one in below:
            found[one.name] = given[one.name]
            if any(other.parent == one.name for other in claims):
                go_down(one, given[one.name])

    go_down(None, total)
    return found


class _Row:
    """One competitor of a level."""

    def __init__(self, held: int, wants: int, guaranteed: int | None, weight: Fraction, priority: int) -> None:
        self.held, self.guaranteed, self.weight, self.priority = held, guaranteed, weight, priority
        self.wants = max(held, wants)

    @property
    def first(self) -> int:
        """What its guarantee gives it."""
        return min(self.wants, self.wants if self.guaranteed is None else self.guaranteed)


def _row(claim: Claim, claims: Sequence[Claim]) -> _Row:
    below = [_row(one, claims) for one in claims if one.parent == claim.name]
    caps = [max(claim.demand, claim.held) + sum(row.wants for row in below)]
    caps += [] if claim.limit is None else [claim.limit]
    caps += [claim.guaranteed] if claim.weight == 0 and claim.guaranteed is not None else []
    held = claim.held + sum(row.held for row in below)
    return _Row(held, min(caps), claim.guaranteed, Fraction(claim.weight), claim.priority)


def _own_row(parent: Claim, below: Sequence[Claim]) -> _Row:
    rest: int | None = None
    if parent.guaranteed is not None:
        rest = parent.guaranteed
        for one in below:
            rest = 0 if one.guaranteed is None else max(0, rest - one.guaranteed)
    return _Row(parent.held, parent.demand, rest, Fraction(1), 0)


def _level(total: int, rows: Mapping[str, _Row]) -> dict[str, int]:
    held = {name: row.held for name, row in rows.items()}
    if sum(held.values()) > total:
        return _rounded(_filled(total, {name: (Fraction(n), 0, n) for name, n in held.items()}))
    first = {name: max(row.held, row.first) for name, row in rows.items()}
    if sum(first.values()) > total:
        weights = {n: Fraction(total if row.guaranteed is None else row.guaranteed) for n, row in rows.items()}
        return _rounded(_filled(total, {n: (weights[n], row.held, first[n]) for n, row in rows.items()}))
    given = dict(first)
    for priority in sorted({row.priority for row in rows.values()}, reverse=True):
        group = {n: row for n, row in rows.items() if row.priority == priority and row.weight}
        base = {n: row.first for n, row in group.items()}
        free = total - sum(given[n] for n in rows if n not in group) - sum(base.values())
        filled = _filled(free, {n: (r.weight, given[n] - base[n], r.wants - base[n]) for n, r in group.items()})
        given.update({n: base[n] + gpus for n, gpus in _rounded(filled).items()})
    return given


def _filled(gpus: int, tanks: Mapping[str, tuple[Fraction, int, int]]) -> dict[str, Fraction]:
    """Fills GPU by GPU: whoever has the least for its weight takes it, those who have equally little together.

    Args:
        gpus: How many there are.
        tanks: Of each, its weight, what it has at least, and what it takes at most.
    """
    has = {name: Fraction(low) for name, (_, low, _) in tanks.items()}
    for _ in range(gpus - sum(low for _, low, _ in tanks.values())):
        spoon = Fraction(1)
        while spoon:
            depth = {n: has[n] / weight for n, (weight, _, high) in tanks.items() if weight and has[n] < high}
            if not depth:
                return has
            lowest = min(depth.values())
            pouring = [name for name in depth if depth[name] == lowest]
            rate = sum((tanks[name][0] for name in pouring), Fraction(0))
            bounds = [tanks[name][2] / tanks[name][0] for name in pouring] + [d for d in depth.values() if d > lowest]
            rise = min([spoon / rate, *(bound - lowest for bound in bounds)])
            for name in pouring:
                has[name] += rise * tanks[name][0]
            spoon -= rise * rate
    return has


def _rounded(exact: Mapping[str, Fraction]) -> dict[str, int]:
    whole = {name: share.numerator // share.denominator for name, share in exact.items()}
    for name in list(_by_fraction(exact))[: int(sum(exact.values()) - sum(whole.values()))]:
        whole[name] += 1
    return whole


def _by_fraction(exact: Mapping[str, Fraction]) -> Iterator[str]:
    left = {name: share % 1 for name, share in exact.items()}
    while left:
        most = max(left.values())
        name = min(one for one in left if left[one] == most)
        del left[name]
        yield name
