"""What machines leave to the jobs that can use only some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.sources.usable import MOST_UNIONS, Stock, bounds_by_machines
from tests.support.quota_jobs import job

NOTHING: Mapping[str, Mapping[str, int]] = {}


def bounds(
    gpus: Mapping[str, int],
    jobs: Mapping[str, str],
    *,
    others: Mapping[str, int] = {},  # noqa: B006 - nobody changes it
    held: Mapping[str, Mapping[str, int]] = NOTHING,
    nodes: Mapping[str, int] = {},  # noqa: B006
    spare: int = 0,
) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns what is left and what others hold, by the jobs' names and the GPUs of a node.

    Machines and jobs have names of one letter: each job says which machines it can use, in one word.
    """
    reports = [job(name, per_node=nodes.get(name, 1)) for name in jobs]
    usable = {name: frozenset(machines) for name, machines in jobs.items()}
    found = bounds_by_machines(Stock(gpus, others, held), reports, usable, frozenset(gpus), spare)
    assert len({one.name for one in found}) == len(found)
    return {("".join(sorted(one.jobs)), one.per_node): (one.gpus, one.taken) for one in found}


TWO = {"a": 4, "b": 8}


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ({"x": "ab", "y": "ab"}, {}),
        ({"x": "a", "y": "ab"}, {("x", 1): (4, 0)}),
        ({"x": "a", "y": "b"}, {("x", 1): (4, 0), ("y", 1): (8, 0)}),
        ({"x": "", "y": "ab"}, {("x", 1): (0, 0)}),
    ],
)
def test_jobs_are_bound_by_the_machines_that_they_can_use(
    jobs: dict[str, str], expected: dict[tuple[str, int], tuple[int, int]]
) -> None:
    assert bounds(TWO, jobs) == expected


def test_what_pods_of_others_hold_is_not_left() -> None:
    assert bounds(TWO, {"x": "a", "y": "b"}, others={"a": 3, "b": 9, "c": 1}) == {("x", 1): (1, 3), ("y", 1): (0, 8)}


def test_what_a_job_holds_that_can_use_other_machines_too_is_not_left_to_those_that_can_not() -> None:
    assert bounds(TWO, {"x": "a", "y": "ab"}, held={"x": {"a": 1}, "y": {"a": 2, "b": 2}}) == {("x", 1): (2, 2)}


@pytest.mark.parametrize(("per_node", "movable"), [(1, 3), (2, 2)])
def test_a_bound_says_what_others_hold_there_and_what_would_be_left_without_them(per_node: int, movable: int) -> None:
    usable = {"x": frozenset("a"), "y": frozenset("ab"), "z": frozenset("ab")}
    held = {"y": {"a": 1, "b": 2}, "z": {"a": 2}}
    reports = [job(name, per_node=per_node if name == "x" else 1) for name in usable]
    found = bounds_by_machines(Stock(TWO, {"a": 1}, held), reports, usable, frozenset(TWO))
    of_x = next(one for one in found if one.jobs == {"x"})
    assert (of_x.gpus, of_x.taken, of_x.movable, of_x.holders) == (0, 4, movable, (("z", 2), ("y", 1)))


def test_what_a_job_holds_on_machines_that_it_could_not_use_any_more_is_its_own() -> None:
    assert bounds(TWO, {"x": "a", "y": "ab"}, held={"x": {"b": 2, "gone": 3}}) == {("x", 1): (6, 0)}


def test_machines_that_overlap_in_part_bound_their_jobs_together() -> None:
    gpus = {"a": 1, "b": 2, "c": 4, "d": 8}
    assert bounds(gpus, {"x": "ab", "y": "bc", "z": "d"}) == {
        ("x", 1): (3, 0), ("y", 1): (6, 0), ("xy", 1): (7, 0), ("z", 1): (8, 0),
    }  # fmt: skip
    assert bounds(gpus, {"x": "abc", "y": "bc", "z": "d"}) == {("xy", 1): (7, 0), ("y", 1): (6, 0), ("z", 1): (8, 0)}


def test_whole_nodes_must_fit_on_a_machine() -> None:
    gpus = {"a": 3, "b": 3, "c": 8}
    assert bounds(gpus, {"x": "ab", "y": "abc"}, nodes={"x": 2, "y": 2}) == {("x", 2): (4, 0), ("xy", 2): (12, 0)}
    assert bounds(gpus, {"x": "abc", "y": "abc"}, nodes={"x": 4}) == {("x", 4): (8, 0)}
    assert bounds(gpus, {"x": "ab"}, nodes={"x": 4}) == {("x", 4): (0, 0)}
    assert bounds(gpus, {"x": "abc"}, nodes={"x": 2}, others={"c": 1}) == {("x", 2): (10, 1)}


@pytest.mark.parametrize(
    ("nodes", "held", "now", "smaller"),
    [
        ({"x": 8, "y": 1}, {"y": {"a": 1, "b": 1}}, 0, 2),
        ({"x": 8, "y": 1}, {"y": {"a": 2}}, 8, 2),
        ({"x": 8, "y": 1}, {"x": {"a": 8}, "y": {"b": 1}}, 8, 1),
        ({"x": 4, "y": 1}, {"y": {"a": 1, "b": 5}}, 4, 6),
        ({"x": 4, "y": 2}, {"y": {"a": 4, "b": 2}}, 8, 6),
        ({"x": 2, "y": 3}, {"y": {"a": 3}}, 12, 3),
        ({"x": 2, "y": 4}, {"y": {"a": 4}}, 16, 0),  # no node of multiples is in the way
    ],
)
def test_whole_nodes_do_not_grow_onto_machines_where_smaller_nodes_of_other_jobs_are(
    nodes: dict[str, int], held: dict[str, dict[str, int]], now: int, smaller: int
) -> None:
    reports = [job(name, per_node=per_node) for name, per_node in nodes.items()]
    machines = frozenset("ab")
    found = bounds_by_machines(Stock({"a": 8, "b": 8}, {}, held), reports, dict.fromkeys(nodes, machines), machines)
    at_once = {one.per_node: (one.at_once.gpus, one.at_once.taken) for one in found if "x" in one.jobs}
    assert at_once.get(nodes["x"], (16, 0)) == (now, smaller)
    assert all(one.gpus == 16 for one in found if "x" in one.jobs), "others make room for them"


def test_nodes_of_multiples_share_a_bound() -> None:
    found = bounds({"a": 7, "b": 8}, {"x": "ab", "y": "ab", "z": "ab"}, nodes={"x": 4, "y": 2, "z": 3})
    assert found == {("x", 4): (12, 0), ("z", 3): (12, 0), ("xy", 2): (14, 0)}


def test_machines_that_may_come_are_left_to_every_job() -> None:
    assert bounds(TWO, {"x": "a", "y": "b"}, spare=4) == {("x", 1): (8, 0), ("y", 1): (12, 0)}


def test_there_are_not_more_unions_than_a_limit() -> None:
    machines = {chr(97 + number): 1 for number in range(20)}
    pairs = {f"{one}{other}": one + other for one, other in combinations(sorted(machines), 2)}
    assert len(bounds(machines, pairs)) <= len(pairs) + MOST_UNIONS


def _has_places(gpus: Mapping[str, int], usable: Mapping[str, frozenset[str]], asked: Mapping[str, int]) -> bool:
    """Returns whether each job finds all of its GPUs on machines that it can use."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(("from", "to"))
    for name, count in asked.items():
        graph.add_edge("from", ("job", name), capacity=count)
        graph.add_edges_from((("job", name), ("machine", one)) for one in usable[name])
    for name, count in gpus.items():
        graph.add_edge(("machine", name), "to", capacity=count)
    return bool(networkx.maximum_flow_value(graph, "from", "to") == sum(asked.values()))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_jobs_within_all_bounds_find_their_gpus_and_no_others_do(seed: int) -> None:
    random = Random(seed)
    gpus = {name: random.randrange(5) for name in "abcd"[: random.randint(1, 4)]}
    usable = {
        name: frozenset(one for one in gpus if random.random() < 0.5) for name in "uvwxyz"[: random.randint(1, 6)]
    }
    jobs: Sequence[Job] = [job(name) for name in usable]
    found = bounds_by_machines(Stock(gpus, {}, {}), jobs, usable, frozenset(gpus))
    for _ in range(10):
        asked = {name: random.randrange(5) for name in usable}
        within = all(sum(asked[name] for name in one.jobs) <= one.gpus for one in found)
        within &= sum(asked.values()) <= sum(gpus.values())
        assert within == _has_places(gpus, usable, asked)
