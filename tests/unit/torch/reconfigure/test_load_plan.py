"""What workers are asked to load around a resize: the present division up to a step, the coming one from there on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.batch import Share, share
from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.torch.data.micro_batches import SPARE_SAMPLES, Piece
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.membership.membership import Division, Formation
from elastic_launcher.torch.reconfigure.load_plan import LEAD_SECONDS, SPARE_STEPS, LoadPlan
from elastic_launcher.torch.state.position import Position

BATCH, PER_EPOCH, AHEAD = 12, 10, 4
FAST, SLOW = LEAD_SECONDS / 8, 2 * LEAD_SECONDS  # seconds a step


class Loader(TrainingData):
    """Remembers what is wanted; all of it is loaded, or nothing."""

    ahead = AHEAD
    loaded = True

    def __init__(self, *, drop_last: bool = False) -> None:
        super().__init__("data", BATCH * PER_EPOCH, drop_last=drop_last)
        self.wanted: list[Piece] = []
        self.urgent = False

    def want(self, pieces: Sequence[Piece], *, urgent: bool = False) -> None:
        assert len(set(pieces)) == len(pieces)
        self.wanted, self.urgent = list(pieces), urgent

    def is_ready(self, pieces: Sequence[Piece]) -> bool:
        return self.loaded and set(pieces) <= set(self.wanted)


class Rank:
    """A rank in the middle of its training."""

    def __init__(
        self, rank: int, ranks: int, usual: float = FAST, epochs: int | None = None, micro: int = BATCH
    ) -> None:
        self.membership: Any = SimpleNamespace(
            rank=rank, dividing=ranks, world_size=ranks, division=Division(rank, ranks)
        )
        self.session: Any = SimpleNamespace(
            position=Position(epoch=0, step=0, step_in_epoch=0),
            need_membership=lambda what: self.membership,
            shares=SimpleNamespace(of=self.shares, max_micro_batch=BATCH),
            data_pass=self.data_pass,
            epochs=epochs,
            autoscaling=None,
            pace=SimpleNamespace(usual=lambda: usual),
        )
        self.formation: Formation | None = None
        self.schedule = BatchSchedule.fixed(BATCH)
        self.loader: Any = Loader()
        self.plan = LoadPlan(self.session, SimpleNamespace(standing=lambda: self.formation))  # type: ignore[arg-type]

        self.micro = micro

    def shares(self, count: int, division: Division) -> dict[int, Share]:
        if division.rank >= division.ranks:
            return {division.rank: Share(count, ())}
        return {division.rank: share(count, self.micro, division.ranks, division.rank)}

    def data_pass(self, data: TrainingData, position: Position) -> DataPass:
        return DataPass(self.schedule, data.size, position.step - position.step_in_epoch, data.drop_last)

    def stands(self, mode: str, rank: int, ranks: int, number: int = 1) -> None:
        group: Any = SimpleNamespace(rank=rank, world_size=ranks)
        self.formation = Formation(number, number, mode, tuple(range(1, ranks + 1)), group=group)

    def step(self) -> dict[int, list[tuple[int, int]]]:
        """Plans the present step, goes on to the next, and returns what was wanted: (start, size) by step."""
        self.plan.load(self.loader)
        self.session.position = self.session.position.after_step(BATCH)
        found: dict[int, list[tuple[int, int]]] = {}
        for epoch, start, size in self.loader.wanted:
            step, offset = divmod(start, BATCH)
            found.setdefault(epoch * PER_EPOCH + step, []).append((offset, size))
        return found


def test_without_a_resize_the_next_steps_are_loaded() -> None:
    rank = Rank(1, 2)
    assert rank.step() == {step: [(6, 6)] for step in range(AHEAD + 1)}
    assert rank.step() == {step: [(6, 6)] for step in range(1, AHEAD + 2)}


def test_what_was_loaded_for_steps_after_a_change_of_the_batch_is_loaded_anew() -> None:
    rank = Rank(1, 2)
    rank.step()
    rank.schedule = rank.schedule.with_entry(2, 6)
    rank.plan.load(rank.loader)
    assert rank.loader.wanted == [(0, 18, 6), *((0, start + 3, 3) for start in range(24, 24 + 6 * AHEAD, 6))]


def test_steps_of_several_micro_batches_count_by_micro_batch() -> None:
    assert Rank(0, 1, micro=6).step() == {0: [(0, 6), (6, 6)], 1: [(0, 6), (6, 6)], 2: [(0, 6)]}


def test_the_next_epoch_follows_and_the_last_one_ends() -> None:
    rank = Rank(0, 2, epochs=2)
    rank.session.position = Position(step=PER_EPOCH - 2, step_in_epoch=PER_EPOCH - 2)
    assert sorted(rank.step()) == [8, 9, 10, 11, 12]
    rank.session.position = Position(epoch=1, step=2 * PER_EPOCH - 2, step_in_epoch=PER_EPOCH - 2)
    assert sorted(rank.step()) == [18, 19]


def test_nothing_is_loaded_of_an_epoch_with_fewer_samples_than_one_batch() -> None:
    rank = Rank(0, 2)
    rank.schedule = BatchSchedule(((0, BATCH), (PER_EPOCH, BATCH * PER_EPOCH + 1)))
    rank.loader = Loader(drop_last=True)
    rank.session.position = Position(step=PER_EPOCH - 2, step_in_epoch=PER_EPOCH - 2)
    assert sorted(rank.step()) == [8, 9]


@pytest.mark.parametrize(("mode", "ranks", "lead"), [("shrink", 1, 1), ("grow", 3, 2)])
def test_fast_steps_use_up_what_is_loaded_before_the_change(mode: str, ranks: int, lead: int) -> None:
    rank = Rank(0, 2)
    rank.step()
    rank.stands(mode, 0, ranks)
    present, coming = (0, 6), (0, BATCH // ranks)
    switch = 1 + lead + AHEAD
    wanted = rank.step()
    assert {step: pieces for step, pieces in wanted.items() if present in pieces} == {
        step: [present] for step in range(1, AHEAD + 2)
    }
    assert {step: pieces for step, pieces in wanted.items() if coming in pieces} == {
        step: [coming] for step in range(switch, switch + AHEAD)
    }
    while rank.session.position.step < switch - lead:
        assert not rank.plan.is_loaded(rank.loader)
        rank.step()
    rank.plan.load(rank.loader)
    assert rank.plan.is_loaded(rank.loader)
    rank.loader.loaded = False
    assert not rank.plan.is_loaded(rank.loader)


def test_slow_steps_change_at_once() -> None:
    rank = Rank(0, 2, usual=SLOW)
    rank.step()
    rank.stands("shrink", 0, 1)
    assert rank.step() == {1: [(0, 6)], 2: [(0, 6), (0, 12)], 3: [(0, 12)], 4: [(0, 12)], 5: [(0, 12)]}


def test_while_a_change_does_not_come_both_divisions_are_loaded() -> None:
    rank = Rank(0, 2, usual=SLOW)
    rank.stands("shrink", 0, 1)
    for now in range(6):
        wanted = rank.step()
        assert wanted[now] == [(0, 6)] or now and wanted[now] == [(0, 6), (0, 12)]
        assert wanted[now + SPARE_STEPS] == [(0, 6), (0, 12)]


def test_a_formation_is_planned_for_once_and_the_next_one_again() -> None:
    rank = Rank(0, 2)
    rank.stands("shrink", 0, 1)

    def switch() -> int:
        return min(step for step, pieces in rank.step().items() if (0, 12) in pieces)

    first = switch()
    assert switch() == first
    rank.stands("shrink", 0, 1, number=2)
    assert switch() == first + 2


def test_in_the_step_in_which_others_join_the_next_ones_are_divided_among_all() -> None:
    survivor, joiner = Rank(0, 1), Rank(1, 1)
    survivor.membership.world_size = joiner.membership.world_size = 2
    assert survivor.step() == {0: [(0, 12)], **{step: [(0, 6)] for step in range(1, AHEAD + 1)}}
    assert joiner.step() == {0: [(0, SPARE_SAMPLES)], **{step: [(6, 6)] for step in range(1, AHEAD + 1)}}


def test_a_rank_without_a_share_has_the_samples_loaded_that_it_runs_on() -> None:
    assert Rank(BATCH, BATCH + 1).step() == {step: [(0, SPARE_SAMPLES)] for step in range(AHEAD + 1)}


def test_one_who_leaves_loads_on_and_keeps_nobody_waiting() -> None:
    rank = Rank(1, 2)
    rank.formation = Formation(1, 1, "shrink", (1,), leavers=(2,))
    assert rank.step() == {step: [(6, 6)] for step in range(AHEAD + 1)}
    assert rank.plan.is_loaded(rank.loader)


def test_what_is_done_again_is_loaded_as_it_is_divided_then() -> None:
    """While the ranks that are left form a group: the place is still that of the group that broke off."""
    rank = Rank(2, 3)
    rank.session.data = rank.loader
    rank.step()
    assert rank.session.position.step == 1 and not rank.loader.urgent
    rank.plan.expect(Division(1, 2))
    assert rank.loader.wanted == [(0, step * BATCH + 6, 6) for step in range(1, AHEAD + 2)] and rank.loader.urgent


def test_nothing_is_loaded_ahead_without_workers_or_outside_a_loop() -> None:
    rank = Rank(2, 3)
    rank.session.data = None
    rank.plan.expect(Division(1, 2))
    rank.session.data, rank.loader.ahead = rank.loader, 0
    rank.plan.expect(Division(1, 2))
    assert rank.loader.wanted == []
