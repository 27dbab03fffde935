"""Who is ahead after a failure, and what each rank does about it."""

from __future__ import annotations

import pytest

from elastic_launcher.torch.membership.reconcile import At, Standing, Todo, Way, find_way

STEP = Standing(At.STEP, operations=5, step=5)
NEXT = Standing(At.STEP, operations=6, step=6)
NEW = Standing()


def todos(*standings: Standing) -> list[Todo]:
    return [find_way(standings, rank).todo for rank in range(len(standings))]


def takers(*standings: Standing) -> dict[int, int]:
    """Returns who takes the state, and from whom."""
    ways = [find_way(standings, rank) for rank in range(len(standings))]
    return {rank: way.source for rank, way in enumerate(ways) if way.takes}


def test_ranks_that_stand_at_the_same_step_do_it_again() -> None:
    assert todos(STEP, STEP, STEP) == [Todo.AGAIN] * 3
    assert takers(STEP, STEP, STEP) == {}


@pytest.mark.parametrize("ahead", [NEXT, Standing(At.END, 6, 6), Standing(At.SUMS, 6, 6)])
def test_one_that_lost_the_step_takes_what_came_of_it_from_the_most_advanced(ahead: Standing) -> None:
    assert todos(STEP, ahead, STEP) == [Todo.ADOPT, Todo.AGAIN, Todo.ADOPT]
    assert takers(STEP, ahead, STEP) == {0: 1, 2: 1}


def test_the_senior_of_the_most_advanced_gives_its_state() -> None:
    assert takers(STEP, NEXT, NEXT) == {0: 1}


def test_one_that_lost_the_first_of_two_reductions_does_the_second_with_the_others() -> None:
    ahead = Standing(At.STEP, operations=6, step=5)
    assert todos(ahead, STEP) == [Todo.AGAIN, Todo.AGAIN]
    assert takers(ahead, STEP) == {1: 0}


def test_one_that_lost_a_step_follows_those_that_sum_over_ranks_after_it() -> None:
    acted = Standing(At.SUMS, 6, 5, in_body=True, acted={"optimizer 0": 1})
    assert todos(acted, STEP) == [Todo.AGAIN, Todo.ADOPT]
    assert takers(acted, STEP) == {1: 0}


def test_a_step_that_one_lost_and_nobody_used_yet_is_given_up_by_all() -> None:
    unused = Standing(At.SUMS, 6, 5, in_body=True)
    assert todos(unused, STEP, unused) == [Todo.DROP, Todo.AGAIN, Todo.DROP]
    assert takers(unused, STEP, unused) == {}
    assert todos(unused, unused) == [Todo.AGAIN, Todo.AGAIN], "all of them have it"


def test_one_that_lost_a_sum_gets_its_result() -> None:
    behind = Standing(At.SUMS, 5, 5)
    ahead = Standing(At.STEP, 6, 5, result={"loss": [[], [0.5]]})
    assert todos(ahead, behind) == [Todo.AGAIN, Todo.RESULT]
    assert takers(ahead, behind) == {}


@pytest.mark.parametrize("outcome", [Todo.STOPPED, Todo.LEFT])
def test_one_that_lost_the_reduction_in_which_the_end_was_said_learns_of_it(outcome: Todo) -> None:
    ahead = Standing(At.END, 6, 5, outcome=outcome)
    assert todos(STEP, ahead) == [outcome, Todo.AGAIN]
    assert takers(STEP, ahead) == {}


def test_those_without_a_state_take_that_of_the_senior() -> None:
    assert takers(NEW, NEW, NEW) == {1: 0, 2: 0}
    assert takers(NEW, STEP, NEW) == {0: 1, 2: 1}


def test_a_torn_state_is_taken_anew_and_never_given() -> None:
    torn = Standing(At.STEP, 5, 5, torn=True)
    assert find_way([torn, STEP, STEP], 0) == Way(Todo.AGAIN, 1, takes=True)
    assert find_way([torn, NEXT, STEP], 0) == Way(Todo.ADOPT, 1, takes=True)
    with pytest.raises(LookupError, match="every rank that had the state"):
        find_way([torn, torn], 0)
