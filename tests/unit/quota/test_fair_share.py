"""Fair shares: published numbers of other schedulers, invariants, and a slow oracle on random trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.fair_share import Claim, fair_share
from tests.support import fair_share_oracle

TREES = 10_000
"""How many random trees are compared with the oracle."""
EXAMPLES = 100
"""How many random trees each property is tried on."""
WEIGHTS = (0, 0.5, 1, 1, 1, 2, 3)


def random_tree(random: Random) -> list[Claim]:
    """Returns up to eight claims, in any order."""
    claims: list[Claim] = []
    for name in random.sample("abcdefgh", random.randint(1, 8)):
        parent = random.choice([None, *(claim.name for claim in claims)])
        guaranteed, limit = random.choice([None, *range(10)]), random.choice([None, None, *range(13)])
        weight, priority, held = random.choice(WEIGHTS), random.randint(-1, 1), random.choice([0, 0, 0, 1, 2, 4])
        claims.append(Claim(name, random.randint(0, 12), guaranteed, limit, weight, priority, parent, held))
    random.shuffle(claims)
    return claims


@st.composite
def trees(draw: st.DrawFn, held: bool = True) -> list[Claim]:
    """Draws up to eight claims, at most four deep, in any order."""
    counts = st.integers(0, 12)
    claims: list[Claim] = []
    depths: dict[str | None, int] = {None: 0}
    for name in draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)):
        parent = draw(st.sampled_from([one for one, depth in depths.items() if depth < 4]))
        depths[name] = depths[parent] + 1
        claims.append(
            Claim(
                name,
                draw(counts),
                draw(st.none() | counts),
                draw(st.none() | counts),
                draw(st.sampled_from(WEIGHTS)),
                draw(st.integers(-1, 1)),
                parent,
                draw(st.integers(0, 4)) if held else 0,
            )
        )
    return draw(st.permutations(claims))


totals = st.integers(0, 40)


def below(claims: Sequence[Claim], parent: str | None) -> list[Claim]:
    return [claim for claim in claims if claim.parent == parent]


def subtree(claims: Sequence[Claim], claim: Claim) -> list[Claim]:
    return [claim, *(one for child in below(claims, claim.name) for one in subtree(claims, child))]


def usable(claims: Sequence[Claim], claim: Claim) -> int:
    """What a subtree can use: demands up to each limit, and up to the guarantee where the weight is 0."""
    wants = claim.demand + sum(usable(claims, child) for child in below(claims, claim.name))
    caps = [claim.limit, claim.guaranteed if claim.weight == 0 else None]
    return min([wants, *(cap for cap in caps if cap is not None)])


def downwards(claims: Sequence[Claim]) -> list[Claim]:
    return [one for claim in below(claims, None) for one in subtree(claims, claim)]


def lifted(claims: Sequence[Claim], claim: Claim) -> Claim:
    """A claim that is guaranteed, and allowed, what its children are guaranteed together."""
    promised = [child.guaranteed for child in below(claims, claim.name)]
    known = [one for one in (claim.guaranteed, sum(one or 0 for one in promised)) if one is not None]
    guaranteed = None if claim.guaranteed is None or None in promised else max(known)
    return replace(claim, guaranteed=guaranteed, limit=None if promised else claim.limit)


def due(claims: Sequence[Claim], claim: Claim) -> int:
    """What a claim asks for within its guarantee."""
    wants = usable(claims, claim)
    return wants if claim.guaranteed is None else min(wants, claim.guaranteed)


def depth(claims: Sequence[Claim], name: str) -> int:
    parent = next(claim.parent for claim in claims if claim.name == name)
    return 1 if parent is None else 1 + depth(claims, parent)


def two(**of_each: tuple[float | None, float | None]) -> list[Claim]:
    """Claims a and b, by default as in KAI's cases of two queues: 6 asked for, 2 guaranteed, weight 2."""
    fields = {"demand": (6, 6), "guaranteed": (2, 2), "weight": (2, 2), **of_each}
    return [Claim(name, **{key: pair[at] for key, pair in fields.items()}) for at, name in enumerate("ab")]


def three(demand: tuple[int, int, int], guaranteed: tuple[int, int, int] = (5, 5, 5)) -> list[Claim]:
    return [Claim(name, demand[at], guaranteed[at], weight=5) for at, name in enumerate("abc")]


@pytest.mark.parametrize(
    ("total", "claims", "shares"),
    [
        pytest.param(100, two(demand=(100, 100), guaranteed=(10, 10), weight=(3, 1)), [70, 30], id="simulator"),
        pytest.param(2, [Claim("a", 2, 3, weight=0)], [2], id="within quota"),
        pytest.param(3, [Claim("a", 2, 3, weight=0)], [2], id="within quota, with a remainder"),
        pytest.param(7, [Claim("a", 5, 3, weight=0)], [3], id="weight 0 has its quota"),
        pytest.param(2, [Claim("a", 2, 0, weight=0)], [0], id="weight 0 without a quota"),
        pytest.param(5, [Claim("a", 5, 3)], [5], id="over quota"),
        pytest.param(6, [Claim("a", 5, 3)], [5], id="over quota, with a remainder"),
        pytest.param(5, [Claim("a", 5, 3, 4)], [4], id="over quota up to the limit"),
        pytest.param(6, [Claim("a", 5, 0)], [5], id="over quota without a quota"),
        pytest.param(15, two(), [6, 6], id="more than enough"),
        pytest.param(12, two(), [6, 6], id="just enough"),
        pytest.param(8, two(weight=(1, 3)), [3, 5], id="in proportion"),
        pytest.param(12, two(limit=(5, None)), [5, 6], id="not above the limit"),
        pytest.param(11, two(demand=(10, 10), weight=(1, 4)), [3, 8], id="largest remainder"),
        pytest.param(11, two(), [6, 5], id="equal remainders"),
        pytest.param(5, two(demand=(3, 3)), [3, 2], id="last GPU of equals"),
        pytest.param(4, two(priority=(1, 2)), [2, 2], id="priority leaves quotas alone"),
        pytest.param(6, two(priority=(1, 2)), [2, 4], id="priority over quota"),
        pytest.param(6, two(priority=(1, 2), weight=(100, 1)), [2, 4], id="priority before weight"),
        pytest.param(10, two(demand=(10, 5), guaranteed=(5, 0), weight=(5, 0)), [10, 0], id="weight 0 beside another"),
        pytest.param(18, three((6, 6, 6)), [6, 6, 6], id="all over quota"),
        pytest.param(10, three((7, 2, 2)), [6, 2, 2], id="what others don't use"),
        pytest.param(10, three((5, 5, 5), (5, 0, 5)), [5, 0, 5], id="nothing is left over quota"),
        pytest.param(
            1000,
            [Claim("a", 5000, 250), Claim("b", 5000, 150, 400, 2)],
            [600, 400],
            id="what the limit leaves",
        ),
        pytest.param(9999, [Claim(n, 10000, 1000) for n in "abc"], [3333, 3333, 3333], id="evenly"),
        pytest.param(
            9999,
            [Claim("a", 10000, weight=6), Claim("b", 10000, weight=2), Claim("c", 10000, weight=1)],
            [6666, 2222, 1111],
            id="by weight",
        ),
    ],
)
def test_shares_are_those_of_kai(total: int, claims: list[Claim], shares: list[int]) -> None:
    assert list(fair_share(total, claims).values()) == shares


@pytest.mark.parametrize(
    ("total", "claims", "shares", "theirs"),
    [
        pytest.param(1, [Claim("a", 2, 3, weight=0)], [1], [2], id="one"),
        pytest.param(10, three((5, 5, 5)), [4, 3, 3], [5, 5, 5], id="equal"),
        pytest.param(10, three((7, 5, 2)), [4, 4, 2], [5, 5, 2], id="one needs less than its part"),
    ],
)
def test_guarantees_that_do_not_fit_are_cut_where_kai_promises_a_gpu_twice(
    total: int, claims: list[Claim], shares: list[int], theirs: list[int]
) -> None:
    assert list(fair_share(total, claims).values()) == shares
    assert sum(shares) == total < sum(theirs)


@pytest.mark.parametrize(
    ("demands", "limit", "shares"),
    [
        pytest.param((1, 0), None, (1, 0), id="one node"),
        pytest.param((4, 0), None, (4, 0), id="what the other lends"),
        pytest.param((4, 2), None, (2, 2), id="what was lent comes back"),
        pytest.param((4, 4), None, (2, 2), id="both want all"),
        pytest.param((4, 1), None, (3, 1), id="the rest stays lent"),
        pytest.param((3, 0), 2, (2, 0), id="no borrowing"),
    ],
)
def test_shares_are_what_kueue_admits_in_a_cohort_of_two(
    demands: tuple[int, int], limit: int | None, shares: tuple[int, int]
) -> None:
    claims = [Claim("a", demands[0], 2, limit), Claim("b", demands[1], 2, limit)]
    assert tuple(fair_share(4, claims).values()) == shares


def test_a_department_divides_its_share_among_its_projects() -> None:
    org = [Claim("org", guaranteed=12), Claim("nlp", 10, 4, parent="org"), Claim("cv", 10, 2, parent="org")]
    assert fair_share(20, [*org, Claim("lab", 20, 4)]) == {"org": 14, "nlp": 8, "cv": 6, "lab": 6}


def test_a_parents_own_jobs_have_what_no_child_is_guaranteed() -> None:
    claims = [Claim("org", 9, 8), Claim("nlp", 9, 5, weight=0, parent="org")]
    assert fair_share(8, claims) == {"org": 8, "nlp": 5}
    assert fair_share(12, claims) == {"org": 12, "nlp": 5}


def test_a_parent_asks_for_nothing_that_its_children_can_not_get() -> None:
    claims = [Claim("org"), Claim("nlp", 10, 2, weight=0, parent="org"), Claim("lab", 10)]
    assert fair_share(10, claims) == {"org": 2, "nlp": 2, "lab": 8}


def test_an_unlimited_guarantee_comes_before_what_is_over_quota() -> None:
    assert fair_share(10, [Claim("a", 20, None), Claim("b", 20)]) == {"a": 10, "b": 0}
    assert fair_share(10, [Claim("a", 20, None), Claim("b", 20, 5)]) == {"a": 7, "b": 3}


def test_what_can_not_be_taken_is_missing_to_the_others_in_proportion() -> None:
    rigid = Claim("a", 6, 2, held=6)
    assert fair_share(10, [rigid, Claim("b", 9, 4), Claim("c", 9, 4)]) == {"a": 6, "b": 2, "c": 2}
    assert fair_share(10, [replace(rigid, guaranteed=0), Claim("b", 9), Claim("c", 9)]) == {"a": 6, "b": 2, "c": 2}
    assert fair_share(4, [rigid, Claim("b", 9, 4)]) == {"a": 4, "b": 0}


def test_a_weight_counts_as_it_is_written() -> None:
    """Of two GPUs, 0.1 and 0.3 are worth 0.5 and 1.5: equal fractions, which the nearest floats would not have."""
    assert fair_share(2, [Claim("b", 9, weight=0.1), Claim("a", 9, weight=0.3)]) == {"b": 0, "a": 2}


@pytest.mark.parametrize(
    ("total", "claims", "said"),
    [
        (-1, [], "total is -1"),
        (1, [Claim("a", demand=-1)], "'a' is negative"),
        (1, [Claim("a", guaranteed=-1)], "'a' is negative"),
        (1, [Claim("a", weight=-0.5)], "'a' is negative"),
        (1, [Claim("a"), Claim("a")], "the same name"),
        (1, [Claim("a", parent="b")], "'b', and no claim has that name"),
        (1, [Claim("a", parent="b"), Claim("b", parent="a"), Claim("c")], "must not form a circle"),
    ],
)
def test_claims_that_make_no_tree_are_refused(total: int, claims: list[Claim], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fair_share(total, claims)


@pytest.mark.thorough
def test_shares_are_those_of_a_slow_oracle() -> None:
    """On ``TREES`` random trees: 10,000, in some four seconds. Each is drawn from a seed of its own."""
    wrong = []
    for seed in range(TREES):
        random = Random(seed)
        total, claims = random.randint(0, 40), random_tree(random)
        if fair_share(total, claims) != fair_share_oracle.shares(total, claims):
            wrong.append((seed, total, claims))
    assert wrong == []


@settings(max_examples=EXAMPLES)
@given(totals, trees())
def test_shares_of_siblings_fit_into_their_parents_share(total: int, claims: list[Claim]) -> None:
    shares = fair_share(total, claims)
    assert sum(shares[claim.name] for claim in below(claims, None)) <= total
    for parent in claims:
        own = shares[parent.name] - sum(shares[claim.name] for claim in below(claims, parent.name))
        assert 0 <= own <= max(parent.demand, parent.held)


@settings(max_examples=EXAMPLES)
@given(totals, trees())
def test_nobody_is_above_its_demand_or_a_limit_but_for_what_it_holds(total: int, claims: list[Claim]) -> None:
    shares = fair_share(total, claims)
    for claim in claims:
        inside = subtree(claims, claim)
        held = sum(one.held for one in inside)
        assert shares[claim.name] <= sum(max(one.demand, one.held) for one in inside)
        assert claim.limit is None or shares[claim.name] <= max(claim.limit, held)


@settings(max_examples=EXAMPLES)
@given(totals, trees(held=False))
def test_demand_within_guarantees_that_fit_is_met(more: int, claims: list[Claim]) -> None:
    for claim in reversed(downwards(claims)):
        claims = [lifted(claims, one) if one.name == claim.name else one for one in claims]
    shares = fair_share(more + sum(due(claims, claim) for claim in below(claims, None)), claims)
    assert [claim for claim in claims if shares[claim.name] < due(claims, claim)] == []


@settings(max_examples=EXAMPLES)
@given(totals, trees(held=False))
def test_no_gpu_is_left_while_somebody_could_use_it(total: int, claims: list[Claim]) -> None:
    shares = fair_share(total, claims)
    top = below(claims, None)
    assert sum(shares[claim.name] for claim in top) == min(total, sum(usable(claims, claim) for claim in top))


@settings(max_examples=EXAMPLES)
@given(totals, trees(), st.randoms())
def test_shares_do_not_depend_on_the_order(total: int, claims: list[Claim], random: Random) -> None:
    shuffled = random.sample(claims, len(claims))
    assert fair_share(total, shuffled) == fair_share(total, claims)


@settings(max_examples=EXAMPLES)
@given(totals, trees(), st.data())
def test_asking_for_more_never_costs_a_gpu(total: int, claims: list[Claim], data: st.DataObject) -> None:
    eager = data.draw(st.sampled_from(claims))
    more = [replace(one, demand=one.demand + 1) if one == eager else one for one in claims]

    def own(shares: dict[str, int]) -> int:
        return shares[eager.name] - sum(shares[claim.name] for claim in below(claims, eager.name))

    before, after = fair_share(total, claims), fair_share(total, more)
    assert after[eager.name] >= before[eager.name]
    assert own(after) >= own(before)


@settings(max_examples=EXAMPLES)
@given(totals, trees())
def test_one_more_gpu_costs_nobody_more_than_one_for_each_level(total: int, claims: list[Claim]) -> None:
    before, after = fair_share(total, claims), fair_share(total + 1, claims)
    for name, share in before.items():
        assert after[name] >= share - depth(claims, name)


def test_one_more_gpu_can_cost_one() -> None:
    """10 GPUs are worth 1.43, 4.29, 4.29, of which the first is the largest fraction; 11 are worth 1.57, 4.71, 4.71."""
    claims = [Claim("a", 99, weight=1), Claim("b", 99, weight=3), Claim("c", 99, weight=3)]
    assert fair_share(10, claims) == {"a": 2, "b": 4, "c": 4}
    assert fair_share(11, claims) == {"a": 1, "b": 5, "c": 5}
