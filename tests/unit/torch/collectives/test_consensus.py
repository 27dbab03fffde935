"""What ranks say survives being added up: a wish of any rank reaches all, and who compares nothing disturbs nobody."""

from __future__ import annotations

import pytest
import torch

from elastic_launcher.torch.collectives.consensus import MOST_BATCH, Agreement, Signals, read, spell


def agree(*ranks: Signals) -> Agreement:
    rows = [spell(one, late=False, weight=1.0, loss=0.5) for one in ranks]
    return read([sum(column) for column in zip(*rows, strict=True)], ranks[0], len(ranks))


@pytest.mark.parametrize("wish", ["stop", "left_loop", "save", "halt"])
def test_a_wish_of_one_rank_reaches_all(wish: str) -> None:
    found = agree(Signals(5), Signals(5, **{wish: True}), Signals(5))
    assert {name: getattr(found, name) for name in ("stop", "left_loop", "save", "halt")} == {
        name: int(name == wish) for name in ("stop", "left_loop", "save", "halt")
    }
    assert found.same_position and found.loss == 0.5


@pytest.mark.parametrize(
    ("checks", "same"),
    [((0, 0, 0), True), ((7, 7, 7), True), ((7, 7, 8), False), ((7, 0, 7), True), ((7, 0, 8), True)],
)
def test_checksums_are_compared_where_all_ranks_have_one(checks: tuple[int, ...], same: bool) -> None:
    assert agree(*(Signals(5, check=check) for check in checks)).same_check is same


def test_a_formation_is_agreed_on_when_all_are_ready() -> None:
    assert agree(Signals(5, ready=3), Signals(5, ready=3)).formation == 3
    assert agree(Signals(5, ready=3), Signals(5)).formation is None


def test_ranks_at_different_steps_are_noticed() -> None:
    assert not agree(Signals(5), Signals(6)).same_position


@pytest.mark.parametrize(("acts", "same"), [((0, 0), True), ((7, 7), True), ((7, 8), False), ((7, 0), True)])
def test_what_acted_is_compared_where_all_ranks_know_it(acts: tuple[int, ...], same: bool) -> None:
    found = agree(*(Signals(5, acts=one) for one in acts))
    assert found.same_acts is same and found.same_check and found.same_position


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 4097, MOST_BATCH - 1, MOST_BATCH])
def test_the_batch_that_one_rank_proposes_reaches_all_exactly(size: int, dtype: torch.dtype) -> None:
    ranks = [Signals(5, batch_size=size if rank == 0 else 0) for rank in range(5)]
    rows = [torch.tensor(spell(one, late=False, weight=1.0, loss=0.5), dtype=dtype) for one in ranks]
    assert read(torch.stack(rows).sum(0).tolist(), ranks[1], 5).batch_size == size
    assert agree(Signals(5), Signals(5)).batch_size == 0
