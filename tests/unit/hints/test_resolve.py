"""How many nodes a job may have: the resolution rules of the hints contract, and their invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints import Demand, Document, Resolution, parse, resolve
from elastic_launcher.hints.resolve import divide, legal_nodes
from tests.support.hint_documents import OBSERVED, demands, document, hint, hints

STALE: dict[str, Any] = {"observedAt": "2026-11-18T11:06:40Z", "ttlSeconds": 60}  # observed at OBSERVED


def resolved(found: Document, now: float = OBSERVED, starting: bool = True, **demand: Any) -> Resolution:
    asked = {"match": {"job": "bert"}, "min_nodes": 1, "max_nodes": 100, **demand}
    return resolve(found, Demand(**asked), now=now, starting=starting)


@pytest.mark.parametrize(
    ("rows", "winner"),
    [
        ([hint(match={"namespace": "ml"}), hint(match={"job": "bert"})], "hints[1]"),
        ([hint(match={"job": "bert"}), hint(match={"job": "b*"}, priority=9)], "hints[0]"),
        ([hint(match={"pipeline": "p"}), hint(match={"queue": "q", "namespace": "ml"}, priority=9)], "hints[0]"),
        ([hint(match={"queue": "q"}), hint(match={"namespace": "ml"}, priority=9)], "hints[0]"),
        ([hint(match={"queue": "q"}), hint(match={"project": "nlp"}, priority=9)], "hints[0]"),
        ([hint(match={"namespace": "ml"}), hint(match={"project": "nlp"})], "hints[1]"),
        ([hint(match={"job": "bert"}, priority=9), hint(match={"id": "bert-1f2e"})], "hints[1]"),
        ([hint(match={"job": "bert"}), hint(match={"id": "bert-5b10"})], "hints[0]"),
        ([hint(match={"job": "bert"}), hint(match={"job": "bert"}, priority=1)], "hints[1]"),
        ([hint(match={"job": "bert"}), hint(match={"job": "bert"})], "hints[0]"),
        ([hint(match={}), hint(match={"job": "other"})], "hints[0]"),
        ([hint(match={"job": "other"})], "defaults"),
        ([], "defaults"),
    ],
)
def test_the_most_specific_match_wins(rows: list[dict[str, Any]], winner: str) -> None:
    match = {"namespace": "ml", "project": "nlp", "queue": "q", "pipeline": "p", "job": "bert", "id": "bert-1f2e"}
    found = resolved(document(*rows, defaults=hint(1)), match=match)
    assert found.matched == winner
    assert winner in found.why[0]


@pytest.mark.parametrize(
    ("rows", "wait"),
    [
        ([hint(1, match={"job": "bert"}, priority=9), hint(match={"job": "bert"}, waitSeconds=60)], 60.0),
        ([hint(match={"job": "b*"}, waitSeconds=5), hint(match={"job": "bert"}, waitSeconds=60), hint(1)], 60.0),
        ([hint(match={"job": "bert"}, priority=9, waitSeconds=0), hint(match={"job": "bert"}, waitSeconds=60)], 0.0),
        ([hint(match={"job": "other"}, waitSeconds=60), hint(match={"job": "bert"})], 900.0),
        ([], 900.0),
    ],
)
def test_the_waiting_time_is_that_of_the_most_specific_entry_that_names_one(
    rows: list[dict[str, Any]], wait: float
) -> None:
    assert resolved(document(*rows, defaults=hint(1, waitSeconds=900))).wait == wait
    assert resolved(document(hint(1))).wait is None


def test_the_nodes_that_go_first_are_those_of_the_entry_that_wins() -> None:
    rows = hint(2, match={"id": "bert-1f2e"}, leave=[3, 1]), hint(2, match={"job": "bert"}, priority=9)
    match = {"job": "bert", "id": "bert-1f2e"}
    assert resolved(document(*rows), match=match).leave == {1, 3}
    assert resolved(document(*rows)).leave == frozenset()


def test_nothing_that_matches_is_the_minimum() -> None:
    found = resolved(document(hint(9, match={"job": "other"})), min_nodes=2)
    assert (found.nodes, found.allowed, found.matched, found.grow_after) == (2, None, "", 60.0)


def test_a_job_that_nothing_matches_any_more_keeps_its_size() -> None:
    found = resolved(document(hint(9, match={"job": "other"})), min_nodes=2, starting=False)
    assert [found.wanted(current) for current in (2, 5)] == [2, 5]


def test_the_limit_is_the_smallest_of_all_that_match_and_defaults_match_nothing_else() -> None:
    rows = [hint(8, limit=9, match={"job": "bert"}), hint(1, limit=6), hint(1, limit=2, match={"job": "other"})]
    found = resolved(document(*rows, defaults=hint(1, limit=1)))
    assert (found.nodes, found.allowed, found.limit) == (6, 6, 6)


def test_a_reclaim_acts_at_once() -> None:
    found = resolved(document(hint(8, 4, reclaim={"to": 3, "by": "2099-01-01T00:00:00Z"})))
    assert (found.nodes, found.allowed, found.guaranteed) == (3, 3, 3)
    assert resolved(document(hint(8, reclaim={"to": 9}))).nodes == 8


@pytest.mark.parametrize(
    ("reclaim", "by"),
    [
        ({"to": 3, "by": "2099-01-01T00:00:00Z"}, 4070908800.0),
        ({"to": 3, "by": "2099-01-01T02:00:00+02:00"}, 4070908800.0),
        ({"to": 3, "by": "2001-01-01T00:00:00"}, 978307200.0),
        ({"to": 3}, None),
        ({"to": 8, "by": "2099-01-01T00:00:00Z"}, None),  # nothing is taken
    ],
)
def test_a_reclaim_says_by_when_where_it_takes_something(reclaim: dict[str, Any], by: float | None) -> None:
    found = resolved(document(hint(8, reclaim=reclaim)))
    assert found.reclaim_by == by
    assert any("are to be left, by " in line for line in found.why) == (by is not None)


@pytest.mark.parametrize(
    ("row", "demand", "nodes"),
    [
        (hint(7), {}, 7),
        (hint(7), {"max_nodes": 3}, 3),
        (hint(7), {"nproc_per_node": 2}, 3),
        (hint(7), {"nproc_per_node": 8}, 0),
        (hint(7), {"min_nodes": 8}, 0),
        (hint(0), {}, 0),
        (hint(7, sizes=[8, 4, 2]), {}, 4),
        (hint(7, sizes=[2, 4, 8]), {"max_nodes": 3}, 2),
        (hint(1, sizes=[2, 4, 8]), {}, 0),
        (hint(7, gpusPerNode=4), {}, 4),
        (hint(3, gpusPerNode=4), {}, 0),
        (hint(8, gpusPerNode=8), {"nproc_per_node": 3}, 2),
        (hint(7, gpusPerNode=2, sizes=[2, 3, 6, 7]), {}, 6),
        (hint(7), {"global_batch_size": 5}, 5),
        (hint(7), {"global_batch_size": 5, "nproc_per_node": 2}, 2),
        (hint(7, sizes=[2, 4, 8]), {"global_batch_size": 3}, 2),
        (hint(7), {"global_batch_size": 1, "nproc_per_node": 2}, 1),
        (hint(7), {"global_batch_size": 2, "min_nodes": 3}, 3),
    ],
)
def test_gpus_are_rounded_down_to_nodes(row: dict[str, Any], demand: dict[str, Any], nodes: int) -> None:
    assert resolved(document(row), **demand).nodes == nodes


@pytest.mark.parametrize(
    ("gpus", "parts", "unit", "expected"),
    [(10, 3, 1, [4, 3, 3]), (2, 3, 1, [1, 1, 0]), (0, 2, 1, [0, 0]), (7, 2, 2, [4, 2]), (16, 3, 8, [8, 8, 0])],
)
def test_shares_fill_like_vessels(gpus: int, parts: int, unit: int, expected: list[int]) -> None:
    assert [divide(gpus, (part, parts), unit) for part in range(1, parts + 1)] == expected


def test_a_share_is_of_the_jobs_own_entry_and_the_limits_of_others_stay() -> None:
    rows = [hint(10, 4, 12, match={"job": "bert"}), hint(1, limit=7)]
    found = resolved(document(*rows), share=(1, 2))
    assert (found.guaranteed, found.allowed, found.limit) == (2, 5, 6)


def test_a_stale_document_gives_at_the_start_what_is_guaranteed() -> None:
    stale = OBSERVED + 61
    assert resolved(document(hint(8, 3), **STALE), now=stale).nodes == 3
    assert resolved(document(hint(8, 3), **STALE), now=stale - 1).nodes == 8
    assert resolved(document(hint(8, 0), **STALE), now=stale).nodes == 0
    assert resolved(document(hint(8), **STALE), now=stale, min_nodes=2).nodes == 2
    assert resolved(document(hint(1), **STALE), now=stale, min_nodes=2).nodes == 0


@pytest.mark.parametrize(("allowed", "current", "wanted"), [(8, 4, 4), (4, 4, 4), (3, 4, 3), (1, 4, 2), (0, 4, 2)])
def test_a_stale_document_shrinks_a_running_job_to_its_minimum_at_the_least(
    allowed: int, current: int, wanted: int
) -> None:
    found = resolved(document(hint(allowed), **STALE), now=OBSERVED + 61, starting=False, min_nodes=2)
    assert found.stale
    assert found.wanted(current) == wanted


def test_the_flat_form_is_resolved_alike() -> None:
    found = parse('{"default": "1", "namespace.ml": "2:5", "job.bert": "4"}')
    assert resolved(found).nodes == 4
    assert resolved(found, match={"namespace": "ml", "job": "x"}).guaranteed == 2
    assert resolved(found, match={"job": "x"}).why[0] == "no entry matches: taken from default"


def test_why_is_said_line_by_line() -> None:
    rows = [hint(7, 2, 8, match={"job": "bert"}, sizes=[2, 4, 8]), hint(3, limit=6, match={"job": "b*"})]
    assert resolved(document(*rows), max_nodes=5, min_nodes=5).why == (
        "hints[0] (job=bert) wins over hints[1] (job=b*): it is the most specific",
        "the limit is that of hints[1]: 6 GPUs",
        "7 GPUs would be above the limit, 6",
        "6 GPUs allowed, 4 used (the job has 5 nodes at most; sizes are 2, 4, 8): fewer than the job's minimum, "
        "5 nodes of 1",
    )


rows_of_hints = st.lists(hints(), max_size=4)


@given(rows_of_hints, st.none() | hints(), demands(), st.booleans())
def test_the_result_is_0_or_within_all_bounds(
    rows: list[dict[str, Any]], defaults: dict[str, Any] | None, demand: Demand, starting: bool
) -> None:
    more = {} if defaults is None else {"defaults": defaults}
    found = resolve(document(*rows, **more), demand, now=OBSERVED, starting=starting)
    assert found.nodes == 0 or demand.min_nodes <= found.nodes <= demand.max_nodes
    if found.allowed is not None:
        assert 0 <= found.nodes * demand.nproc_per_node <= found.allowed
        assert found.allowed <= (found.allowed if found.limit is None else found.limit)
        assert (found.guaranteed or 0) <= found.allowed
    if found.nodes > demand.min_nodes and demand.global_batch_size is not None:
        assert found.nodes * demand.nproc_per_node <= demand.global_batch_size


@given(hints(), demands(), st.booleans(), st.booleans(), st.integers(0, 40))
def test_the_result_is_monotone_in_allowed(
    row: dict[str, Any], demand: Demand, starting: bool, stale: bool, more: int
) -> None:
    row = row | {"gpus": {"allowed": row["gpus"]["allowed"]}}
    raised = row | {"gpus": {"allowed": row["gpus"]["allowed"] + more}}
    now = OBSERVED + (61 if stale else 0)
    before, after = (resolve(document(one, **STALE), demand, now=now, starting=starting).nodes for one in (row, raised))
    assert before <= after


@given(rows_of_hints, demands(), st.integers(0, 20))
def test_a_stale_document_never_raises_and_never_ends_a_job(
    rows: list[dict[str, Any]], demand: Demand, more: int
) -> None:
    current = demand.min_nodes + more
    found = resolve(document(*rows, **STALE), demand, now=OBSERVED + 61, starting=False)
    assert demand.min_nodes <= found.wanted(current) <= current


@given(rows_of_hints, demands())
def test_a_stale_document_gives_a_start_no_more_than_a_fresh_one(rows: list[dict[str, Any]], demand: Demand) -> None:
    fresh, stale = (
        resolve(document(*rows, **STALE), demand, now=now, starting=True) for now in (OBSERVED, OBSERVED + 61)
    )
    assert stale.nodes <= fresh.nodes


@given(hints(), demands(), st.integers(1, 6))
def test_parts_never_add_up_to_more_than_the_whole(row: dict[str, Any], demand: Demand, parts: int) -> None:
    found = document(row | {"match": {}})
    shares = [
        resolve(found, replace(demand, share=(part, parts)), now=OBSERVED, starting=True)
        for part in range(1, parts + 1)
    ]
    whole = resolve(found, replace(demand, share=None), now=OBSERVED, starting=True)
    numbers = [one.allowed or 0 for one in shares]
    assert sum(numbers) <= (whole.allowed or 0)
    assert max(numbers) - min(numbers) <= row.get("gpusPerNode", 1)
    assert numbers == sorted(numbers, reverse=True)


@given(hints(), demands(), st.integers(0, 60))
def test_what_is_used_is_legal(row: dict[str, Any], demand: Demand, gpus: int) -> None:
    [entry] = document(row).entries
    nodes = legal_nodes(gpus, entry, demand)
    legal = [one for one in entry.sizes or range(1, 61) if one % entry.gpus_per_node == 0 and one <= gpus]
    assert nodes == 0 or nodes in {one // demand.nproc_per_node for one in legal}
