"""Who is ahead after a failure, and what each rank does about it."""

from __future__ import annotations

import pytest

from elastic_launcher.torch.membership.reconcile import At, NextAction, RankStatus, RecoveryPlan, find_way

STEP = RankStatus(At.STEP, operations=5, step=5)
NEXT = RankStatus(At.STEP, operations=6, step=6)
NEW = RankStatus()


def todos(*standings: RankStatus) -> list[NextAction]:
    return [find_way(standings, rank).todo for rank in range(len(standings))]


def takers(*standings: RankStatus) -> dict[int, int]:
    """Returns who takes the state, and from whom."""
    ways = [find_way(standings, rank) for rank in range(len(standings))]
    return {rank: way.source for rank, way in enumerate(ways) if way.takes}


def test_ranks_that_stand_at_the_same_step_do_it_again() -> None:
    assert todos(STEP, STEP, STEP) == [NextAction.AGAIN] * 3
    assert takers(STEP, STEP, STEP) == {}


@pytest.mark.parametrize("ahead", [NEXT, RankStatus(At.END, 6, 6), RankStatus(At.SUMS, 6, 6)])
def test_one_that_lost_the_step_takes_what_came_of_it_from_the_most_advanced(ahead: RankStatus) -> None:
    assert todos(STEP, ahead, STEP) == [NextAction.ADOPT, NextAction.AGAIN, NextAction.ADOPT]
    assert takers(STEP, ahead, STEP) == {0: 1, 2: 1}


def test_the_senior_of_the_most_advanced_gives_its_state() -> None:
    assert takers(STEP, NEXT, NEXT) == {0: 1}


def test_one_that_lost_the_first_of_two_reductions_does_the_second_with_the_others() -> None:
    ahead = RankStatus(At.STEP, operations=6, step=5)
    assert todos(ahead, STEP) == [NextAction.AGAIN, NextAction.AGAIN]
    assert takers(ahead, STEP) == {1: 0}


def test_one_that_lost_a_step_follows_those_that_sum_over_ranks_after_it() -> None:
    acted = RankStatus(At.SUMS, 6, 5, in_body=True, acted={"optimizer 0": 1})
    assert todos(acted, STEP) == [NextAction.AGAIN, NextAction.ADOPT]
    assert takers(acted, STEP) == {1: 0}


def test_a_step_that_one_lost_and_nobody_used_yet_is_given_up_by_all() -> None:
    unused = RankStatus(At.SUMS, 6, 5, in_body=True)
    assert todos(unused, STEP, unused) == [NextAction.DROP, NextAction.AGAIN, NextAction.DROP]
    assert takers(unused, STEP, unused) == {}
    assert todos(unused, unused) == [NextAction.AGAIN, NextAction.AGAIN], "all of them have it"


def test_one_that_lost_a_sum_gets_its_result() -> None:
    behind = RankStatus(At.SUMS, 5, 5)
    ahead = RankStatus(At.STEP, 6, 5, result={"loss": [[], [0.5]]})
    assert todos(ahead, behind) == [NextAction.AGAIN, NextAction.RESULT]
    assert takers(ahead, behind) == {}


@pytest.mark.parametrize("outcome", [NextAction.STOPPED, NextAction.LEFT])
def test_one_that_lost_the_reduction_in_which_the_end_was_said_learns_of_it(outcome: NextAction) -> None:
    ahead = RankStatus(At.END, 6, 5, outcome=outcome)
    assert todos(STEP, ahead) == [outcome, NextAction.AGAIN]
    assert takers(STEP, ahead) == {}


def test_those_without_a_state_take_that_of_the_senior() -> None:
    assert takers(NEW, NEW, NEW) == {1: 0, 2: 0}
    assert takers(NEW, STEP, NEW) == {0: 1, 2: 1}


def test_a_torn_state_is_taken_again_and_never_given() -> None:
    torn = RankStatus(At.STEP, 5, 5, torn=True)
    assert find_way([torn, STEP, STEP], 0) == RecoveryPlan(NextAction.AGAIN, 1, takes=True)
    assert find_way([torn, NEXT, STEP], 0) == RecoveryPlan(NextAction.ADOPT, 1, takes=True)
    with pytest.raises(LookupError, match="every rank that had the state"):
        find_way([torn, torn], 0)
