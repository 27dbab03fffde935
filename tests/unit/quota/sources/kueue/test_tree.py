"""Kueue's quota arithmetic: its published cases, what was measured, and random trees against admission one by one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.quota.sources.kueue.tree import FlavorTree, Quota

PAIR: Mapping[str, str | None] = {"a": "all", "b": "all", "all": None}


@pytest.mark.parametrize(
    ("quotas", "usage", "available", "room"),
    [
        ({"a": Quota(2), "b": Quota(2)}, {}, {"a": 4, "b": 4}, 4),
        ({"a": Quota(2), "b": Quota(2)}, {"a": 1}, {"a": 3, "b": 3}, 3),
        ({"a": Quota(2), "b": Quota(2)}, {"a": 4}, {"a": 0, "b": 0}, 0),
        ({"a": Quota(2), "b": Quota(2, lending=1)}, {"a": 3}, {"a": 0, "b": 1}, 1),
        ({"a": Quota(2), "b": Quota(2, lending=0)}, {"a": 1}, {"a": 1, "b": 3}, 3),
        ({"a": Quota(2, borrowing=0), "b": Quota(2)}, {"a": 3}, {"a": -1, "b": 1}, 1),
        ({"a": Quota(2, borrowing=1), "b": Quota(2)}, {}, {"a": 3, "b": 4}, 4),
        ({"a": Quota(2), "b": Quota(2), "all": Quota(1)}, {"b": 2}, {"a": 3, "b": 3}, 3),
        ({"a": Quota(2), "b": Quota(1)}, {"a": 2, "b": 2}, {"a": -1, "b": -1}, -1),
    ],
)
def test_a_cohort_of_two_queues(
    quotas: dict[str, Quota], usage: dict[str, int], available: dict[str, int], room: int
) -> None:
    tree = FlavorTree(PAIR, quotas, usage)
    assert {name: tree.available(name) for name in available} == available
    assert tree.room("all") == room


def test_a_borrowing_limit_of_a_cohort_bounds_its_queues_together() -> None:
    parents = {"a": "left", "b": "left", "c": "right", "left": "all", "right": "all", "all": None}
    quotas = {"a": Quota(2), "b": Quota(2), "c": Quota(6, lending=4), "left": Quota(0, borrowing=1)}
    tree = FlavorTree(parents, quotas, {"a": 3})
    assert (tree.available("a"), tree.available("b"), tree.available("c")) == (2, 2, 7)
    assert (tree.room("left"), tree.room("all")) == (2, 7)
    assert (tree.quota("left"), tree.quota("all")) == (4, 10)
    assert FlavorTree(parents, quotas, {}).available("a") == 5


limits = st.none() | st.integers(0, 4)
quotas = st.builds(Quota, st.integers(0, 4), limits, limits)
shapes = st.lists(st.integers(0, 2), min_size=1, max_size=5)  # the cohort of each queue; 1 and 2 are below 0


@given(shapes, st.lists(quotas, min_size=8, max_size=8), st.lists(st.integers(0, 5), min_size=5, max_size=5))
def test_what_is_available_is_what_can_be_admitted_one_by_one(
    shape: list[int], drawn: list[Quota], used: list[int]
) -> None:
    parents: dict[str, str | None] = {"c0": None, "c1": "c0", "c2": "c0"}
    parents |= {f"q{number}": f"c{cohort}" for number, cohort in enumerate(shape)}
    quotas = dict(zip(sorted(parents), drawn, strict=False))
    usage: dict[str, int] = {}
    for queue, gpus in zip([name for name in parents if name.startswith("q")], used, strict=False):
        tree = FlavorTree(parents, quotas, usage)
        most = 0
        while _fits(parents, quotas, usage | {queue: most + 1}):
            most += 1
        assert tree.available(queue) == most
        assert tree.room("c0") >= most
        usage[queue] = min(gpus, most)


def _fits(parents: Mapping[str, str | None], quotas: Mapping[str, Quota], usage: Mapping[str, int]) -> bool:
    """Returns whether each node's use is within its quota and borrowing limit, worked out from the leaves upwards."""

    def go(name: str) -> tuple[int, int, bool]:
        quota = quotas.get(name, Quota())
        below = [go(child) for child, parent in parents.items() if parent == name]
        subtree = quota.nominal + sum(lent for lent, _, _ in below)
        used = usage.get(name, 0) + sum(borrowed for _, borrowed, _ in below)
        good = all(fine for *_, fine in below)
        if parents[name] is None:
            return 0, 0, good and used <= subtree
        kept = 0 if quota.lending is None else max(0, subtree - quota.lending)
        if quota.borrowing is not None:
            good = good and used <= subtree + quota.borrowing
        return subtree - kept, max(0, used - kept), good

    return all(go(name)[2] for name, parent in parents.items() if parent is None)
