"""The schedules of ``make chaos`` and of the cluster's: what they cover, and that each can come to the end meant."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos import sharded
from tests.chaos.schedule import (
    ADAPTIVE,
    ENDS,
    EVALUATION,
    JOINER,
    KINDS,
    LOOP,
    MEETINGS,
    MORE,
    MOST_LOSSES,
    PROCESSES,
    SAVING,
    WIDER,
    Act,
    Schedule,
    draw,
)
from tests.cluster.chaos import schedule as cluster

ALL = [draw(seed) for seed in range(1, WIDER)]
LATER = [draw(seed) for seed in range(WIDER, WIDER + 100)]
ADAPTING = [draw(seed) for seed in range(ADAPTIVE, ADAPTIVE + 60)]
SHARDED = [sharded.draw(seed) for seed in range(sharded.FIRST, sharded.FIRST + 60)]
ON_CLUSTER = [cluster.draw(seed) for seed in range(1, 21)]
LOSSES = ("kill", "freeze", "break", "notice", "admit", "forced deletion", "kill process")
AFRESH = ("everything", sharded.STOP)
"""After these another launcher starts all nodes."""


def test_a_seed_is_one_schedule() -> None:
    assert [draw(one.seed) for one in ALL] == ALL


def test_a_third_is_large_and_a_third_has_loader_workers() -> None:
    assert sum(one.nodes * one.nproc >= 4 for one in ALL) * 3 >= len(ALL)
    assert sum(one.workers > 0 for one in ALL) * 3 >= len(ALL)
    assert sum(one.nproc == 2 for one in ALL) * 6 >= len(ALL)


def test_several_things_happen_to_each() -> None:
    assert min(len(one.acts) for one in ALL) >= 4
    assert all(one.acts[-1].kind == "end" and "end" not in {act.kind for act in one.acts[:-1]} for one in ALL)


def test_three_hundred_have_each_kind_of_act_at_each_moment() -> None:
    acts = [act for one in ALL for act in one.acts]
    assert {act.kind for act in acts} == set(KINDS)
    assert min(Counter(act.kind for act in acts).values()) >= 10
    assert {act.moment for act in acts if act.kind == "kill"} == {*LOOP, *EVALUATION, SAVING}
    assert {act.moment for act in acts if act.kind == "everything"} == {*LOOP, *EVALUATION, SAVING}
    assert {act.moment for act in acts if act.kind == "end"} == {"", *ENDS}
    assert {act.then for act in acts if act.kind == "kill" and len(act.hit) > 1} == {"", *MEETINGS}
    assert {(act.how, act.moment) for act in acts if act.kind == "admit"} == {
        ("", ""),
        ("", "form"),
        ("", "give"),
        (JOINER, "form"),
        (JOINER, "receive"),
    }


def test_a_hundred_more_have_each_of_the_acts_that_were_added() -> None:
    acts = [act for one in LATER for act in one.acts]
    assert min(Counter(act.kind for act in acts if act.kind in MORE).values()) >= 5
    assert {act.kind for act in acts} == {*KINDS, *MORE}
    assert {act.how for act in acts if act.kind == "kill process"} == {*PROCESSES}
    assert any(act.kind == "end" and act.how == "freeze" for act in acts)


def test_the_batch_adapts_in_sixty_seeds_that_have_each_kind_of_act() -> None:
    assert all(one.adapts for one in ADAPTING) and not any(one.adapts for one in (*ALL, *LATER))
    assert {act.kind for one in ADAPTING for act in one.acts} == {*KINDS, *MORE}


def test_models_are_sharded_in_sixty_seeds_that_have_each_kind_of_act() -> None:
    acts = [act for one in SHARDED for act in one.acts]
    assert all(one.sharded for one in SHARDED) and not any(one.sharded for one in (*ALL, *LATER, *ADAPTING))
    assert {act.kind for act in acts} == set(sharded.KINDS)
    assert {(one.nodes, one.nproc) for one in SHARDED} == set(sharded.SHAPES)
    assert {(one.batch, one.micro) for one in SHARDED} == set(sharded.BATCHES)
    assert {act.moment for act in acts if act.kind == "kill"} == {*LOOP, *EVALUATION, SAVING}
    assert {len(act.hit) for act in acts if act.kind == "kill"} == {1, 2}
    assert {act.how for act in acts if act.kind == "kill process"} == {*PROCESSES}
    assert {len(act.hit) for act in acts if act.kind == "kill process"} == {1, 2}


def test_sharded_jobs_are_stopped_and_go_on_with_as_many_ranks_on_each_node_and_with_more_and_fewer() -> None:
    stops = [(one.nproc, act.each) for one in SHARDED for act in one.acts if act.kind == sharded.STOP]
    assert {each for _, each in stops} == set(sharded.SIZES)
    assert {(each > before) - (each < before) for before, each in stops} == {-1, 0, 1}


def test_a_schedule_says_all_that_is_special_about_it() -> None:
    stop = Act("stop", 2, to=2, each=4)
    one = Schedule(1001, 3, 4, 2, 0, 5, "init", (stop, Act("end")), sharded=True, batch=25, micro=3)
    assert str(one) == "3 x 2 of 4, sharded, 25 by 3, saved every 5: +2 stop to 2 x 4; +1 end"


def test_twenty_seeds_have_each_kind_of_act_on_the_cluster_and_three_those_of_it_alone() -> None:
    assert {act.kind for one in ON_CLUSTER for act in one.acts} == set(cluster.KINDS)
    assert {"notice", "cut", "launcher"} <= {act.kind for one in ON_CLUSTER[:3] for act in one.acts}


def test_a_machine_is_cut_off_while_it_holds_the_node_that_it_began_with() -> None:
    for one in ON_CLUSTER:
        kinds = [act.kind for act in one.acts]
        if "cut" in kinds:
            before = one.acts[: kinds.index("cut")]
            assert {act.kind for act in before} <= cluster.HARMLESS
            assert not any(act.moment for act in before)


@pytest.mark.parametrize(
    "schedule",
    [*ALL, *LATER, *ADAPTING, *SHARDED, *ON_CLUSTER],
    ids=[*(str(one.seed) for one in (*ALL, *LATER, *ADAPTING, *SHARDED)), *(f"cluster {n}" for n in range(1, 21))],
)
def test_a_node_that_holds_the_state_stays(schedule: Schedule) -> None:
    """Followed by hand: who trains after each act, and how many nodes were lost since the launcher was started."""
    nodes = wanted = schedule.nodes
    nproc, losses = schedule.nproc, 0
    for act in schedule.acts:
        hit = {seat.age for seat in act.hit}
        assert all(seat.local < nproc for seat in act.hit)
        assert max(hit, default=0) < (wanted if act.how == JOINER else nodes)
        gone = len(hit) if act.kind in LOSSES else 0
        lost = gone
        if act.kind == "break":
            gone = lost = int(bool(act.then))
            assert len(act.hit) < nodes * nproc
        if act.kind == "cut":
            gone = lost = 1
        if act.kind == "notice":
            lost = int(act.how == "and kill")
        if act.kind in ("freeze the only one", "notice to all"):  # the job restarts
            assert nodes == wanted and (act.kind == "notice to all" or nodes == 1)
            losses = lost = 0
        if act.kind == "admit":
            assert nodes < wanted
            nodes = wanted
        if act.to:
            wanted, nodes = act.to, act.to if act.kind in AFRESH else min(act.to, nodes)
            assert 1 <= wanted <= schedule.most
            nproc = act.each or nproc
        nodes -= gone
        losses = 0 if act.kind in AFRESH else losses + lost
        assert nodes >= 1
        assert not schedule.sharded or wanted * nproc <= sharded.MOST_RANKS
        assert losses <= MOST_LOSSES
        assert act.kind != "end" or not act.hit or nodes > 1
