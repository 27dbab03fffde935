"""Lanes: what is refused, and how a reader reads forward."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_launcher.lane_order import LaneOrder
from elastic_launcher.torch.data.lane_reader import FAR, LaneReader
from elastic_launcher.torch.data.lanes import Lanes, lane_order, lanes
from tests.support.lane_batches import lane_batches

LENGTHS, BATCH = (23, 31, 0, 30), 8


class Source:
    """Lanes of numbers; counts what is read."""

    def __init__(self, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.lengths = lengths
        self.opened: list[tuple[int, int, int]] = []
        self.closed: list[int] = []
        self.read = 0

    def __call__(self, lane: int, epoch: int, start: int) -> Iterator[Any]:
        self.opened.append((lane, epoch, start))
        return self._samples(lane, epoch, start)

    def _samples(self, lane: int, epoch: int, start: int) -> Iterator[Any]:
        try:
            for place in range(start, self.lengths[lane]):
                self.read += 1
                yield lane, epoch, place, random.random()
        finally:
            self.closed.append(lane)


def reader_of(
    source: Any,
    *,
    shuffle: bool = False,
    block: int = 5,
    exact: bool = True,
    decode: Any = None,
    says: tuple[int, ...] = LENGTHS,
) -> LaneReader:
    return LaneReader(Lanes(source, says, exact, decode, block), LaneOrder(says, BATCH), 3, shuffle)


def read(reader: LaneReader, start: int, stop: int, epoch: int = 0) -> list[Any]:
    samples = reader.samples(epoch, list(range(start, stop)))
    assert samples is not None
    return samples


def test_an_epoch_is_read_forward_and_each_sample_once() -> None:
    source = Source()
    reader = reader_of(source)
    found = [sample for start in range(0, 84, 4) for sample in read(reader, start, start + 4, 2)]
    expected = [place for step in lane_batches(LENGTHS, BATCH) for place in step]
    assert [(lane, place) for lane, _, place, _ in found] == expected
    assert {epoch for _, epoch, _, _ in found} == {2}
    assert sorted(source.opened) == [(0, 2, 0), (1, 2, 0), (3, 2, 0)] and source.read == 84
    assert sorted(source.closed) == [0, 1, 3]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_is_the_same_from_wherever_it_is_read(shuffle: bool) -> None:
    whole = read(reader_of(Source(), shuffle=shuffle), 0, 84, 1)
    for start, stop in ((0, 3), (17, 40), (80, 84), (55, 56)):
        assert read(reader_of(Source(), shuffle=shuffle), start, stop, 1) == whole[start:stop]
    back_and_forth = reader_of(Source(), shuffle=shuffle)
    for start in (60, 8, 16, 8, 76, 0):
        assert read(back_and_forth, start, start + 8, 1) == whole[start : start + 8]


def test_lanes_are_shuffled_in_blocks_in_each_epoch_anew() -> None:
    epochs = [read(reader_of(Source(), shuffle=True), 0, 84, epoch) for epoch in range(2)]
    orders = [[(lane, place) for lane, _, place, _ in found] for found in epochs]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == sorted(place for step in lane_batches(LENGTHS, BATCH) for place in step)
        for lane in (0, 1, 3):
            places = [place for of, place in order if of == lane]
            assert places != sorted(places)
            assert all(abs(place - at) < 5 for at, place in enumerate(places))


def test_a_shuffled_epoch_reads_each_sample_once() -> None:
    source = Source()
    reader = reader_of(source, shuffle=True)
    for start in range(0, 84, 8):
        read(reader, start, min(start + 8, 84))
    assert source.read == 84


def test_what_other_ranks_read_is_skipped_where_it_is_near_and_opened_behind_where_it_is_far() -> None:
    source = Source((1000,))
    reader = reader_of(source, says=(1000,))
    read(reader, 0, 4)
    read(reader, 8, 12)
    assert source.opened == [(0, 0, 0)] and source.read == 12
    read(reader, 500, 504)
    assert source.opened == [(0, 0, 0), (0, 0, 500)] and source.read == 16


def test_a_lane_that_another_rank_has_taken_over_is_closed() -> None:
    source = Source((1000, 1000))
    reader = reader_of(source, says=(1000, 1000))
    read(reader, 0, 8)
    for step in range(1, FAR + 3):
        assert source.closed == []
        read(reader, step * BATCH, step * BATCH + 4)
    assert source.closed == [1]
    read(reader, (FAR + 3) * BATCH, (FAR + 4) * BATCH)
    assert source.opened == [(0, 0, 0), (1, 0, 0), (1, 0, (FAR + 3) * 4)]


def test_a_lane_that_steps_seldom_take_a_sample_of_stays_open() -> None:
    source = Source((1000, 8))
    reader = reader_of(source, says=(1000, 8))
    for start in range(0, 1008, BATCH):
        read(reader, start, start + BATCH)
    assert source.opened == [(0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_that_is_asked_for_again_is_read_again(shuffle: bool) -> None:
    """Whoever got it may have changed it."""

    def open_lane(lane: int, epoch: int, start: int) -> Iterator[dict[str, int]]:
        return ({"place": place} for place in range(start, 20))

    reader = reader_of(open_lane, says=(20,), shuffle=shuffle)
    first = [sample.pop("place") for sample in read(reader, 8, 16)]
    assert [sample.pop("place") for sample in read(reader, 8, 16)] == first


def decoded_places(reader: LaneReader, start: int, stop: int) -> list[Any]:
    return [(lane, place, drawn) for (lane, _, place, _), drawn in read(reader, start, stop)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_only_what_is_needed_is_decoded_with_random_numbers_of_its_own(shuffle: bool) -> None:
    made = []

    def decode(sample: Any) -> Any:
        made.append(sample)
        return sample, random.random()

    whole = decoded_places(reader_of(Source(), decode=decode, shuffle=shuffle), 0, 84)
    assert len({drawn for *_, drawn in whole}) == len(made) == 84
    made.clear()
    reader = reader_of(Source(), decode=decode, shuffle=shuffle)
    assert decoded_places(reader, 8, 10) + decoded_places(reader, 20, 30) == whole[8:10] + whole[20:30]
    assert len(made) == 12


def test_an_error_of_decode_says_in_which_lane() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        read(reader_of(Source(), decode=lambda sample: 1 // 0), 0, 1, 2)
    assert caught.value.__notes__ == ["in decode, of lane 0, sample 0 of epoch 2"]


def test_what_nobody_wants_any_more_is_not_read() -> None:
    source = Source()
    assert reader_of(source).samples(0, range(8), lambda: source.read < 2) is None
    assert source.read == 2


# -- refusals


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": None}, ValueError, r"need lengths=\[\.\.\.\].*or lengths=N.*to count them once: \[sum"),
        ({"lengths": [1, 2]}, ValueError, "lengths has 2 numbers, and there are 3 lanes; give one for each"),
        ({"lengths": [1, 2, -1]}, ValueError, r"lengths\[2\] is -1"),
        ({"lengths": [0, 0, 0]}, ValueError, "all lanes have length 0"),
        ({"lengths": 0}, ValueError, "lengths is 0"),
        ({"lengths": 2.5}, ValueError, "lengths is 2.5; it must be a whole number"),
        ({"lanes": 0}, ValueError, "lanes is 0"),
        ({"open": [1, 2]}, TypeError, r"open is list; it must be a function: open\(lane, epoch, start\)"),
        ({"shuffle_block": 0}, ValueError, "shuffle_block is 0"),
    ],
)
def test_what_can_not_be_lanes_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"open": Source(), "lanes": 3, "lengths": [1, 2, 3], **arguments}
    with pytest.raises(error, match=message):
        lanes(given.pop("open"), **given)


def test_more_lanes_than_samples_in_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="9 lanes, and the global batch has 8 samples.*at most 8 lanes"):
        lane_order(lanes(Source(), lanes=9, lengths=5), 8)


def test_a_lane_that_gives_fewer_samples_than_before_is_named() -> None:
    reader = reader_of(Source((23, 12, 0, 30)))
    with pytest.raises(ValueError, match=r"lane 1 ended early: open\(1, 4, 0\) gave 12 samples.*has 31 \(31 from 0 on"):
        for start in range(0, 84, 8):
            read(reader, start, start + 8, 4)


def test_a_lane_that_can_not_be_opened_so_far_on_is_named() -> None:
    with pytest.raises(ValueError, match=r"lane 3 ended early: open\(3, 0, 27\) gave 0 samples.*\(3 from 27 on\)"):
        read(reader_of(Source((23, 31, 0, 20))), 78, 84)


def test_a_lane_that_has_more_samples_is_named_unless_an_epoch_takes_a_part() -> None:
    with pytest.raises(ValueError, match=r"lane 0 has more than the 23 samples.*correct lengths\[0\]"):
        read(reader_of(Source((24, 31, 0, 30))), 0, 84)
    assert len(read(reader_of(Source((24, 31, 0, 30)), exact=False), 0, 84)) == 84


def test_what_can_not_be_read_is_named() -> None:
    with pytest.raises(TypeError, match=r"open\(0, 0, 0\) returned int; it must return an iterable of the samples"):
        read(reader_of(lambda *_: 5, says=(8,)), 0, 8)


def test_an_exception_says_in_which_lane_and_is_not_the_end() -> None:
    broken = [True]

    def samples(lane: int, epoch: int, start: int) -> Iterator[int]:
        for place in range(start, 20):
            if place == 6 and broken:
                broken.clear()
                raise OSError("connection reset")
            yield place

    reader = reader_of(samples, says=(20,))
    read(reader, 0, 4)
    with pytest.raises(OSError, match="connection reset") as caught:
        read(reader, 4, 8)
    assert caught.value.__notes__ == ["in lane 0, at sample 6 of epoch 0; opened at 0"]
    assert read(reader, 4, 8) == [4, 5, 6, 7]
