"""A restart stops a training until all ranks are there; in-process, who stays goes on and others join."""

from __future__ import annotations

from elastic_launcher.quota.allocation.places import Placement
from elastic_launcher.quota.simulation.physics import HOLD, InProcess, Physics, Ranks, Restart

DELAY = 30.0
SPARE = {"a": 4, "b": 4, "c": 4}


def changed(
    physics: Physics, *changes: tuple[float, Placement], spare: Placement = SPARE
) -> tuple[list[tuple[float, tuple[int, ...]]], bool]:
    """Returns the phases after changes, and whether the last one stopped the training."""
    ranks, stopped = Ranks(), False
    for now, placement in changes:
        stopped = physics.change(ranks, now, placement, DELAY, spare)
    return ranks.phases, stopped


def test_a_restart_stops_the_training_at_each_change() -> None:
    assert changed(Restart(), (0, {"a": 2})) == ([(0, ()), (30, (2,))], False)
    assert changed(Restart(), (0, {"a": 2}), (60, {"a": 3, "b": 1})) == ([(60, ()), (90, (1, 3))], True)
    assert changed(Restart(), (0, {"a": 2}), (60, {})) == ([(60, ())], True)
    assert changed(Restart(), (0, {"a": 2}), (60, {}), (120, {"a": 2})) == ([(120, ()), (150, (2,))], False)


def test_the_first_ranks_train_when_they_are_ready() -> None:
    assert changed(InProcess(), (0, {"a": 2})) == ([(0, ()), (30, (2,))], False)


def test_ranks_that_stay_go_on_until_others_join() -> None:
    phases, stopped = changed(InProcess(), (0, {"a": 2}), (60, {"a": 3, "b": 1}))
    assert phases == [(60, (2,)), (90, ()), (90 + HOLD, (1, 3))]
    assert not stopped


def test_a_shrink_stops_for_a_moment() -> None:
    phases, stopped = changed(InProcess(), (0, {"a": 2, "b": 2}), (60, {"a": 2}))
    assert phases == [(60, ()), (60 + HOLD, (2,))]
    assert not stopped


def test_ranks_that_are_about_to_join_are_not_started_again() -> None:
    phases, _ = changed(InProcess(), (0, {"a": 1}), (60, {"a": 2}), (70, {"a": 2, "b": 1}))
    assert phases == [(70, (1,)), (90, ()), (90 + HOLD, (2,)), (100, ()), (100 + HOLD, (1, 2))]


def test_ranks_that_join_on_one_machine_while_others_leave() -> None:
    phases, stopped = changed(InProcess(), (0, {"a": 2, "b": 2}), (60, {"b": 2, "c": 2}))
    assert phases == [(60, ()), (60 + HOLD, (2,)), (90, ()), (90 + HOLD, (2, 2))]
    assert not stopped


def test_who_keeps_nothing_trains_on_the_old_gpus_until_the_new_are_ready() -> None:
    phases, stopped = changed(InProcess(), (0, {"a": 2}), (60, {"b": 4}))
    assert phases == [(60, (2,)), (90, ()), (90 + HOLD, (4,))]
    assert not stopped


def test_who_keeps_nothing_is_stopped_where_somebody_else_got_the_old_gpus() -> None:
    phases, stopped = changed(InProcess(), (0, {"a": 2}), (60, {"b": 4}), spare={"a": 1, "b": 0})
    assert phases == [(60, ()), (90, (4,))]
    assert stopped


def test_a_bridge_ends_when_somebody_else_gets_its_gpus() -> None:
    ranks = Ranks()
    InProcess().change(ranks, 0, {"a": 2}, DELAY, SPARE)
    InProcess().change(ranks, 60, {"b": 4}, DELAY, SPARE)
    assert ranks.bridge == {"a": 2}
    ranks.end_bridge(70)
    assert ranks.phases == [(70, ()), (90, (4,))]


def test_a_job_that_is_paused_stops() -> None:
    assert changed(InProcess(), (0, {"a": 2}), (60, {})) == ([(60, ())], True)
    assert changed(InProcess(), (0, {"a": 2}), (60, {}), (90, {"a": 2})) == ([(90, ()), (120, (2,))], False)


def test_a_change_before_the_first_ranks_are_ready_stops_nothing() -> None:
    assert changed(InProcess(), (0, {"a": 2}), (10, {"b": 2})) == ([(10, ()), (40, (2,))], False)


def test_times_between_two_are_told_by_what_trains() -> None:
    ranks = Ranks([(10.0, (1,)), (20.0, ()), (30.0, (2,))])
    assert list(ranks.between(15.0, 40.0)) == [(15.0, 20.0, (1,)), (20.0, 30.0, ()), (30.0, 40.0, (2,))]
    assert list(ranks.between(0.0, 12.0)) == [(10.0, 12.0, (1,))]
    assert list(ranks.between(40.0, 40.0)) == []
