"""Of what several ranks log at one step, the lowest rank's counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.logged import RECENT_STEPS, Logged


@given(
    logs=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.dictionaries(st.sampled_from("abc"), st.integers())),
        max_size=12,
    ),
    data=st.data(),
)
def test_in_any_order_of_arrival_the_lowest_rank_holds(
    logs: list[tuple[int, int, dict[str, int]]], data: st.DataObject
) -> None:
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    for step, rank, values in logs:
        for name, value in values.items():
            if rank <= expected.get((step, name), (rank, 0))[0]:
                expected[step, name] = (rank, value)
    logged = Logged()
    written: dict[tuple[int, str], tuple[int, int]] = {}
    while logs:  # ranks' reports mix; one rank's keep their order
        rank = data.draw(st.sampled_from(sorted({rank for _, rank, _ in logs})))
        number = next(number for number, one in enumerate(logs) if one[1] == rank)
        step, rank, values = logs.pop(number)
        logged, taken = logged.add(step, rank, values)
        written.update({(step, name): (rank, value) for name, value in taken.items()})
    assert written == expected
    last = {name: max(step for step, one in expected if one == name) for _, name in expected}
    assert logged.last() == {name: expected[step, name][1] for name, step in last.items()}


def test_what_is_remembered_does_not_grow_with_the_steps() -> None:
    logged = Logged()
    for step in range(10 * RECENT_STEPS):
        logged, _ = logged.add(step, 0, {"lr": 1 / (step + 1)})
    assert len(logged.steps["lr"]) == RECENT_STEPS


def test_a_value_from_long_ago_is_told_and_replaces_nothing() -> None:
    logged = Logged()
    for step in range(1, 2 * RECENT_STEPS):
        logged, _ = logged.add(step, 1, {"lr": step})
    logged, taken = logged.add(0, 0, {"lr": 0})
    assert taken == {"lr": 0}
    assert logged.last() == {"lr": 2 * RECENT_STEPS - 1}
    assert len(logged.steps["lr"]) == RECENT_STEPS
