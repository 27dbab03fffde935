"""What a job's step times say about its goodput on each number of GPUs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import pytest

from elastic_launcher.adaptive import step_times
from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.adaptive.goodput import Basis, SizeGoodput
from elastic_launcher.adaptive.observations import merged
from elastic_launcher.adaptive.step_times import MOST_SIZES, Table, sizes, table
from elastic_launcher.adaptive.throughput import ThroughputModel

MODEL = ThroughputModel(0.005, 0.002, across=0.01, across_per_rank=0.003)
FIXED = Bounds.fixed(64, 64)
ADAPTIVE = Bounds(64, 1024, 64)


def reported(*ranks: int, bounds: Bounds = FIXED, batch: int = 64, **more: Any) -> dict[str, Any]:
    """Returns a ``step_times`` event of a job that ran on these numbers of ranks."""
    shapes = [(one, one, bounds.micro_batches(batch, one)) for one in ranks]
    known = [(machines, one, micro[0], len(micro)) for machines, one, micro in shapes]
    times = [[*one, MODEL.step_seconds(*one), MODEL.micro_batch_seconds(one[2]), 50] for one in known]
    return {"step": 100, "batch": batch, "times": times, "bounds": asdict(bounds), **more}


def made(*events: dict[str, Any], most: int = 8) -> Table:
    known: dict[str, Any] = {}
    for event in events:
        known = merged(known, event)
    return table(known, sizes(1, most, 1))


def tabled(*events: dict[str, Any], most: int = 8) -> dict[int, SizeGoodput]:
    return {one.ranks: one for one in made(*events, most=most).rows}


def test_sizes_are_measured_where_the_job_was_and_modelled_elsewhere() -> None:
    found = tabled(reported(1, 2, 4))
    assert [one for one in found if found[one].basis is Basis.MEASURED] == [1, 2, 4]
    assert [one for one in found if found[one].basis is Basis.MODELLED] == [3, 5, 6, 7, 8]
    assert found[2].goodput == pytest.approx(64 / MODEL.step_seconds(2, 2, 32, 1))
    assert found[8].goodput == pytest.approx(64 / MODEL.step_seconds(8, 8, 8, 1), rel=0.1)


def test_a_job_that_was_on_one_size_says_what_twice_as_many_would_give_and_promises_no_more() -> None:
    found = tabled(reported(2))
    assert found[1].goodput < found[2].goodput < found[4].goodput
    assert {found[one].basis for one in (5, 8)} == {Basis.BOUNDED}
    assert {found[one].goodput for one in (5, 8)} == {found[4].goodput}


def test_a_deterministic_job_has_no_more_of_ranks_beyond_its_virtual_ranks() -> None:
    bounds = Bounds.fixed(64, 16, virtual_ranks=4)
    found = tabled(reported(1, 2, 4, bounds=bounds))
    shapes = {ranks: (one.choice.micro_batch, one.choice.accumulation) for ranks, one in found.items()}
    assert shapes == {1: (16, 4), 2: (16, 2), 3: (16, 2), **dict.fromkeys(range(4, 9), (16, 1))}
    assert [one for one in found if found[one].basis is Basis.MEASURED] == [1, 2, 4]
    assert found[3].goodput == pytest.approx(64 / MODEL.step_seconds(3, 3, 16, 2), rel=0.1)
    assert max(found[one].goodput for one in range(5, 9)) <= found[4].goodput


def test_what_was_reported_before_still_holds() -> None:
    found = tabled(reported(1), reported(3))
    assert [one for one in found if found[one].basis is Basis.MEASURED] == [1, 3]


def test_a_later_time_of_the_same_steps_replaces_the_one_before() -> None:
    before, after = reported(1), reported(1)
    before["times"][0][4] *= 3
    assert tabled(before, after)[1].goodput == pytest.approx(64 / MODEL.step_seconds(1, 1, 64, 1))


def test_with_an_adaptive_batch_each_size_has_its_own() -> None:
    found = tabled(reported(1, 2, bounds=ADAPTIVE, noise=[100.0, 1.0]))
    assert found[1].choice.batch_size < found[4].choice.batch_size <= 1024
    assert found[4].choice.efficiency < 1 == tabled(reported(4))[4].choice.efficiency


@pytest.mark.parametrize(("offset", "measured"), [(0, True), (-2, True), (-220, False)])
def test_a_batch_that_was_timed_counts_while_the_job_would_keep_it(offset: int, measured: bool) -> None:
    """The best batch is seldom the very one that the job has."""
    noise = {"bounds": ADAPTIVE, "noise": [100.0, 1.0]}
    best = tabled(reported(1, 2, **noise))[4].choice.batch_size
    found = tabled(reported(1, 2, **noise), reported(4, **noise, batch=best + offset))
    assert (found[4].basis is Basis.MEASURED, found[4].choice.batch_size == best + offset) == (measured, measured)


def test_without_scipy_there_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    step_times._table.cache_clear()
    events = reported(1, 4, bounds=ADAPTIVE, batch=128, noise=[100.0, 1.0])
    found, said = tabled(events), made(events).assumptions
    step_times._table.cache_clear()
    assert "scipy" in said[0]
    assert {one: found[one].basis for one in found} == {1: Basis.MEASURED, 4: Basis.MEASURED}
    assert found[4].samples_per_second == pytest.approx(128 / MODEL.step_seconds(4, 4, 32, 1))
    assert found[4].goodput < found[4].samples_per_second


def test_where_no_model_can_be_fitted_there_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(observations: Any) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(step_times, "fit", fails)
    step_times._table.cache_clear()
    found, said = tabled(reported(1, 4)), made(reported(1, 4)).assumptions
    step_times._table.cache_clear()
    assert list(found) == [1, 4] and said == ("nothing: sizes that were not measured are left out (no)",)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"times": [[1, 1, 8]], "bounds": asdict(FIXED), "used": [64]},
        {"times": [[1, 1, 8, 1, "inf", "nan", 9]], "bounds": asdict(FIXED), "used": [64]},
        {"times": [[1, 1, 8, 1, "soon", None, 9]], "bounds": asdict(FIXED), "used": [64]},
        {"times": [], "bounds": {"base": 8}, "used": [64]},
        {"times": [], "bounds": asdict(FIXED), "used": [64], "noise": ["nan", 1.0]},
        {"times": [], "bounds": asdict(FIXED), "used": [64]},
    ],
)
def test_what_says_nothing_gives_no_table(fields: dict[str, Any]) -> None:
    assert table(fields, [(1, 1)]) == Table()


def test_sizes_that_batch_norm_can_not_have_are_left_out() -> None:
    bounds = Bounds.fixed(3, 2, batch_statistics=True)
    assert set(tabled(reported(1, bounds=Bounds.fixed(3, 3), batch=3) | {"bounds": asdict(bounds)}, most=3)) == set()


@pytest.mark.parametrize("most", [1, 5, MOST_SIZES, 100, 4096])
def test_sizes_are_legal_and_not_too_many(most: int) -> None:
    found = sizes(1, most, 8)
    assert (found[0], found[-1]) == ((1, 8), (most, 8 * most))
    assert found == sorted(set(found)) and len(found) <= MOST_SIZES
    assert all(ranks == 8 * nodes for nodes, ranks in found)


def test_beyond_some_size_a_gpu_is_hardly_worth_it() -> None:
    events = reported(1, 2, 4, 8, 16)
    found, last = tabled(events, most=16), made(events, most=16).last_worthwhile
    assert last is not None and 1 < last < 16
    third = found[1].goodput / 3
    assert found[last + 1].goodput - found[last].goodput < third <= found[last].goodput - found[last - 1].goodput


@pytest.mark.parametrize("ranks", [(), (1,), (2,)])
def test_where_nothing_is_known_beyond_all_that_is_known_is_worth_it(ranks: tuple[int, ...]) -> None:
    """With micro-batches of one size, nobody knows what smaller ones take."""
    found = made(reported(*ranks))
    assert found.last_worthwhile is None
    assert len(found.assumptions) >= 2 or not ranks


def test_documents_have_numbers_and_whether_they_were_measured() -> None:
    assert tabled(reported(1))[1].document() == {
        "ranks": 1,
        "batch": 64,
        "micro_batch": 64,
        "accumulation": 1,
        "samples_per_second": pytest.approx(64 / 0.133, rel=1e-4),
        "efficiency": 1.0,
        "goodput": pytest.approx(64 / 0.133, rel=1e-4),
        "measured": True,
    }
