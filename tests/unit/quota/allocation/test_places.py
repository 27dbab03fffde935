"""Jobs get whole machines first and the rest by best fit, keep their places, and rarely share what several use."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.allocation.places import Machines, Placement, Wish
from elastic_launcher.quota.allocation.worth import Candidate
from tests.support.allocation_jobs import candidate, drawn_jobs, drawn_machines, used

FOUR = {"a": 4, "b": 4, "c": 4, "d": 4}


def wish(job: Candidate, gpus: int, held: Placement | None = None, *, stays: bool = False, first: bool = False) -> Wish:
    return Wish(job, gpus, held or {}, sum((held or {}).values()), stays, first)


def placed(machines: Mapping[str, int], *wishes: Wish, in_process: bool = True) -> dict[str, dict[str, int]]:
    places = Machines(machines, in_process)
    assert places.place(wishes) == []
    return places.placements


@pytest.mark.parametrize(
    ("machines", "taken", "gpus", "where"),
    [
        (FOUR, {}, 8, {"a": 4, "b": 4}),  # whole machines
        (FOUR, {"a": 1}, 4, {"b": 4}),
        (FOUR, {"a": 1}, 3, {"a": 3}),  # the fullest machine that has enough
        (FOUR, {"a": 2, "b": 1, "c": 1}, 2, {"a": 2}),
        (FOUR, {"a": 1}, 7, {"b": 4, "a": 3}),  # a whole one, and the rest by best fit
        (FOUR, {"a": 2, "b": 1, "c": 2, "d": 2}, 5, {"b": 3, "a": 2}),  # the emptiest ones, where none is whole
        ({"a": 2, "b": 8, "c": 4}, {}, 6, {"b": 6}),  # one machine, if one is large enough
        ({"a": 2, "b": 8, "c": 4}, {}, 12, {"b": 8, "c": 4}),
        ({"a": 2, "b": 8, "c": 4}, {}, 2, {"a": 2}),
    ],
)
def test_places_are_whole_machines_and_then_the_best_fit(
    machines: dict[str, int], taken: dict[str, int], gpus: int, where: dict[str, int]
) -> None:
    others = [wish(candidate(f"on-{name}"), count, {name: count}, stays=True) for name, count in taken.items()]
    assert placed(machines, *others, wish(candidate("job"), gpus))["job"] == where


def test_a_job_that_stays_keeps_its_places() -> None:
    held = {"b": 1, "d": 2}
    assert placed(FOUR, wish(candidate("job"), 3, held, stays=True))["job"] == held


def test_a_job_that_moves_to_be_on_fewer_machines_leaves_its_places() -> None:
    assert placed(FOUR, wish(candidate("job"), 3, {"b": 1, "d": 2}))["job"] == {"b": 3}


def test_a_job_shrinks_where_it_is_and_keeps_the_fullest_machines() -> None:
    assert placed(FOUR, wish(candidate("job"), 4, {"a": 1, "b": 4, "c": 2}))["job"] == {"b": 4}
    assert placed(FOUR, wish(candidate("job"), 5, {"a": 1, "b": 4, "c": 2}))["job"] == {"b": 4, "c": 1}


def test_a_job_that_restarts_anyway_is_packed_anew_when_it_shrinks() -> None:
    assert placed(FOUR, wish(candidate("job"), 3, {"a": 2, "b": 2}), in_process=False)["job"] == {"a": 3}


def test_a_job_grows_around_what_it_holds() -> None:
    assert placed(FOUR, wish(candidate("job"), 3, {"c": 1}))["job"] == {"c": 3}
    assert placed(FOUR, wish(candidate("job"), 8, {"c": 2}))["job"] == {"c": 4, "a": 4}


def test_a_job_moves_to_one_machine_where_it_can_not_grow_on_its_own() -> None:
    other = wish(candidate("other"), 3, {"c": 3}, stays=True)
    assert placed(FOUR, other, wish(candidate("job"), 3, {"c": 1}))["job"] == {"a": 3}


def test_two_jobs_on_several_machines_share_none() -> None:
    found = placed({"a": 4, "b": 3, "c": 3}, wish(candidate("one"), 5), wish(candidate("two"), 3))
    assert found == {"one": {"a": 4, "b": 1}, "two": {"c": 3}}
    places = Machines({"a": 2, "b": 2, "c": 2}, True)
    missing = places.place([wish(candidate("one"), 3), wish(candidate("two", minimum=3, sizes=(3,)), 3)])
    assert [one.candidate.name for one in missing] == ["two"]
    places.squeeze(missing)  # rather than being without
    assert places.placements == {"one": {"a": 2, "b": 1}, "two": {"c": 2, "b": 1}}


def test_a_job_for_which_there_is_no_place_leaves_its_gpus_to_others() -> None:
    places = Machines({"a": 3, "b": 3, "c": 3}, True)
    missing = places.place([wish(candidate("one"), 5), wish(candidate("two"), 4)])
    assert [one.candidate.name for one in missing] == ["two"]
    places.squeeze(missing)
    assert places.placements == {"one": {"a": 3, "b": 2}, "two": {"c": 3}}


def test_nodes_are_not_divided_between_machines() -> None:
    job = candidate("job", node_gpus=2, minimum=2)
    assert placed({"a": 3, "b": 3}, wish(job, 4))["job"] == {"a": 2, "b": 2}
    assert Machines({"a": 3, "b": 1}, True).place([wish(job, 4)]) != []


def test_what_is_first_comes_before_larger_jobs() -> None:
    places = Machines({"a": 4}, True)
    missing = places.place([wish(candidate("large"), 4), wish(candidate("small"), 2, first=True)])
    assert [one.candidate.name for one in missing] == ["large"]


@settings(max_examples=60, deadline=None)
@given(drawn_jobs(), drawn_machines(), st.data())
def test_no_machine_gives_more_than_it_has_and_nodes_stay_whole(
    jobs: list[Candidate], machines: dict[str, int], data: st.DataObject
) -> None:
    wishes = [wish(job, data.draw(st.sampled_from(job.considered()))) for job in jobs if job.considered()]
    places = Machines(machines, data.draw(st.booleans()))
    missing = places.place(wishes)
    several = [set(one) for one in places.placements.values() if len(one) > 1]
    assert all(one.isdisjoint(other) for place, one in enumerate(several) for other in several[:place])
    assert {one.candidate.name for one in missing}.isdisjoint(places.placements)
    places.squeeze(missing)
    taken = used(places.placements)
    assert all(gpus <= machines[machine] for machine, gpus in taken.items())
    asked = {one.candidate.name: one for one in wishes}
    for name, placement in places.placements.items():
        one = asked[name]
        assert all(gpus % one.candidate.node_gpus == 0 for gpus in placement.values())
        assert one.candidate.is_legal(sum(placement.values()))
        assert sum(placement.values()) <= one.gpus
