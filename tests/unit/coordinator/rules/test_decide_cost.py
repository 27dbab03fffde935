"""What the coordinator does for an event grows with the number of members, and not with its square or cube."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.coordinator.health.monitor import LOOK_SECONDS, between_looks
from elastic_launcher.coordinator.health.silence import STALL_SECONDS
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members, Nodes, Ranks
from tests.support.played_job import Job, training

FEW, MANY = 48, 192  # members; four times as many


def start(members: int) -> Callable[[], Any]:
    job = Job(minimum=members, target=members)

    def begin() -> None:
        job.warm(*range(1, members + 1))
        job.complete()

    return begin


def test_a_second_of_looking_costs_no_more_with_many_members_than_with_a_few_hundred() -> None:
    """What one look costs is linear in the members; a look that comes too late would count as the launcher's own."""
    pauses = {}
    for members in (1, 512, 1024, 4096, 100_000):
        pauses[members] = between_looks(Job(minimum=members, target=members).state)
    assert pauses == {1: 0.05, 512: 0.05, 1024: 0.1, 4096: 0.4, 100_000: STALL_SECONDS / 2}


def test_members_that_are_gone_make_no_look_come_later() -> None:
    job = training(1500)
    assert between_looks(job.state) > LOOK_SECONDS
    for node in range(2, 1501):
        job.state = job.state.with_node(node, phase=Phase.GONE)
    assert between_looks(job.state) == LOOK_SECONDS


def loss(members: int) -> Callable[[], Any]:
    job = training(members)

    def lose() -> None:
        job.rank_ended(2, signal=9)
        job.break_step(job.state.survivors(), job.state.group_formation, 12)
        job.complete(12)
        assert len(job.state.group) == members - 1

    return lose


def notice(members: int) -> Callable[[], Any]:
    job = training(members)

    def leave() -> None:
        job.notice(members // 2)
        job.complete(12)
        assert len(job.state.group) == members - 1

    return leave


def grow(members: int) -> Callable[[], Any]:
    job = training(members)

    def join() -> None:
        job.target(members + members // 4)
        job.warm(*range(members + 1, members + members // 4 + 1))
        job.tick(1.1)
        job.complete(12)
        assert len(job.state.group) == members + members // 4

    return join


def end(members: int) -> Callable[[], Any]:
    job = training(members)

    def over() -> None:
        job.train_to_the_end(20)
        assert job.finish is not None and job.finish.exit_code == 0

    return over


def calls(act: Callable[[], Any]) -> int:
    """Returns how many Python functions are entered, and generators resumed, while something runs."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("event", [start, loss, notice, grow, end])
def test_the_work_for_an_event_is_linear_in_the_number_of_members(event: Callable[[int], Callable[[], Any]]) -> None:
    assert calls(event(MANY)) < 5 * calls(event(FEW))


def test_a_loss_after_many_earlier_ones_is_no_harder() -> None:
    job = training(FEW)
    for turn in range(8):
        job.tick(61)
        job.rank_ended(job.state.group[-1], signal=9)
        job.break_step(job.state.survivors(), job.state.group_formation, 12 + turn)
        job.complete(12 + turn)
    assert job.finish is None and len(job.state.group) == FEW - 8


phases = st.sampled_from(list(Phase))


@given(st.lists(st.tuples(st.integers(1, 6), phases, st.sampled_from(["", "hint", "notice"])), max_size=12))
def test_a_table_of_nodes_that_was_changed_is_as_one_made_at_once(changes: list[tuple[int, Phase, str]]) -> None:
    table = Nodes({number: Node(number, (number,), 0.0, "start") for number in range(1, 7)})
    plain: dict[int, Node] = dict(table)
    for moment, (number, phase, leave) in enumerate(changes, 1):
        since = plain[number].since if phase is plain[number].phase else float(moment)
        plain[number] = replace(plain[number], phase=phase, leave=leave, since=since)
        table = table.replaced(plain[number])
    made = Nodes(plain)
    assert dict(table) == plain
    assert {phase: [*some] for phase, some in table.phases.items()} == {
        phase: [*some] for phase, some in made.phases.items()
    }
    assert (table.leaving, table.staying) == (made.leaving, made.staying)


flags = st.sampled_from(["left", "lost", "ended", "done"])


@given(st.lists(st.tuples(st.integers(1, 4), flags, st.sampled_from([None, Exit(0), Exit(signal=9)])), max_size=12))
def test_a_table_of_members_that_was_changed_is_as_one_made_at_once(
    changes: list[tuple[int, str, Exit | None]],
) -> None:
    table = Members({number: Member(number, number, 0) for number in range(1, 5)})
    plain: dict[int, Member] = dict(table)
    for number, flag, exit in changes:
        plain[number] = replace(plain[number], exit=exit, **{flag: not getattr(plain[number], flag)})
        table = table.replaced(plain[number])
    made = Members(plain)
    assert dict(table) == plain
    assert (table.departed, table.exited, table.ended, table.early) == (
        made.departed,
        made.exited,
        made.ended,
        made.early,
    )


def test_ranks_are_a_tuple_that_knows_its_places() -> None:
    ranks = Ranks((7, 3, 9))
    assert ranks == (7, 3, 9) and 3 in ranks and 4 not in ranks and ranks.index(9) == 2
    with pytest.raises(ValueError):
        ranks.index(4)
