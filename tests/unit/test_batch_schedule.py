"""Steps of a schedule with several batch sizes take the samples of each epoch once and in order."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.batch import share
from elastic_launcher.batch_schedule import BatchSchedule, DataPass, StepSamples
from elastic_launcher.torch.data.micro_batches import pieces_of

sizes = st.integers(1, 60)


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    lengths = draw(st.lists(st.integers(1, 30), max_size=4))
    steps = accumulate(lengths, initial=0)
    return BatchSchedule(tuple((step, draw(sizes)) for step in steps))


@given(schedules(), st.integers(-5, 40), st.integers(0, 60))
def test_whole_steps_are_those_whose_samples_are_there(schedule: BatchSchedule, first: int, steps: int) -> None:
    by_hand = sum(schedule.batch_size(step) for step in range(first, first + steps))
    assert schedule.samples(first, first + steps) == by_hand
    assert schedule.whole_steps(first, by_hand) == steps
    assert schedule.whole_steps(first, by_hand + schedule.batch_size(first + steps) - 1) == steps


@given(schedules(), st.integers(1, 400), st.integers(-5, 40), st.booleans(), st.integers(1, 9), st.integers(1, 20))
def test_the_ranks_of_each_step_take_an_epochs_samples_once_and_in_order(
    schedule: BatchSchedule, dataset_size: int, first: int, drop_last: bool, world_size: int, max_batch: int
) -> None:
    steps, taken = DataPass(schedule, dataset_size, first, drop_last), []
    for step in range(steps.steps):
        samples = steps.samples(step)
        assert samples.count <= schedule.batch_size(first + step)
        assert samples.count == schedule.batch_size(first + step) or (step == steps.steps - 1 and not drop_last)
        shares = [share(samples.count, max_batch, world_size, rank) for rank in range(world_size)]
        for one in shares:
            if one.micro_batches:
                pieces = pieces_of(3, samples, [one], max_batch)
                taken += [place for _, start, size in pieces for place in range(start, start + size)]
                assert {order for order, _, _ in pieces} == {3} and all(size <= max_batch for _, _, size in pieces)
    left_out = dataset_size - len(taken)
    assert taken == list(range(len(taken)))
    assert left_out == 0 or (drop_last and left_out < schedule.batch_size(first + steps.steps))


@given(schedules(), st.integers(1, 400), sizes, st.data())
def test_a_change_within_an_epoch_leaves_the_steps_before_it_as_they_were(
    schedule: BatchSchedule, dataset_size: int, size: int, data: st.DataObject
) -> None:
    """As when a batch size is decided while the training runs."""
    last = schedule.entries[-1][0]
    before = DataPass(schedule, dataset_size, last)
    at = data.draw(st.integers(1, before.steps))
    after = DataPass(BatchSchedule((*schedule.entries, (last + at, size))), dataset_size, last)
    assert [after.samples(step) for step in range(at)] == [before.samples(step) for step in range(at)]
    counts = [after.samples(step).count for step in range(after.steps)]
    assert sum(counts) == dataset_size and all(count == size for count in counts[at:-1])


@given(schedules(), st.integers(1, 400), st.integers(-5, 40), st.booleans())
def test_the_sizes_of_a_passs_steps_are_known_without_looking_at_each(
    schedule: BatchSchedule, size: int, first: int, drop_last: bool
) -> None:
    one = DataPass(schedule, size, first, drop_last)
    if one.steps:
        assert set(one.counts()) == {one.samples(step).count for step in range(one.steps)}
    else:
        with pytest.raises(ValueError, match=f"the data set has {size} samples, fewer than one global batch of"):
            one.counts()


@given(schedules(), st.integers(1, 200), st.integers(0, 20))
def test_epochs_follow_each_other_without_a_step_between(schedule: BatchSchedule, size: int, first: int) -> None:
    one = DataPass(schedule, size, first)
    assert one.following() == DataPass(schedule, size, first + one.steps)


def test_a_rank_without_a_share_works_on_two_samples_that_do_not_count() -> None:
    assert pieces_of(0, StepSamples(20, 7), [share(7, 4, 9, 8)], 4) == [(0, 20, 2)]
    assert pieces_of(0, StepSamples(20, 7), [share(7, 1, 9, 8)], 1) == [(0, 20, 1)]
    assert pieces_of(0, StepSamples(20, 1), [share(1, 4, 2, 1)], 4) == [(0, 20, 1)]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ((), r"entries from the steps \[\]; they must rise from 0"),
        (((1, 8),), r"entries from the steps \[1\]; they must rise from 0"),
        (((0, 8), (5, 16), (5, 32)), r"entries from the steps \[0, 5, 5\]; they must rise from 0"),
        (((0, 0),), "global_batch_size is 0; it must be a whole number, 1 or more"),
        (((0, 8), (1.5, 8)), "step is 1.5; it must be a whole number, 0 or more"),
    ],
)
def test_what_is_no_schedule_is_refused(entries: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BatchSchedule(entries)


@given(schedules(), st.integers(0, 130), sizes, st.integers(0, 130))
def test_an_entry_holds_from_its_step_on_and_leaves_those_before_it(
    schedule: BatchSchedule, at: int, size: int, step: int
) -> None:
    after = schedule.with_entry(at, size)
    assert after.batch_size(step) == (size if step >= at else schedule.batch_size(step))
    assert after.until(at) == after


@given(schedules(), st.integers(0, 130), st.integers(0, 200))
def test_the_entries_until_a_step_hold_up_to_it(schedule: BatchSchedule, until: int, step: int) -> None:
    kept = schedule.until(until)
    assert kept.batch_size(step) == schedule.batch_size(min(step, until))
    assert kept.entries[-1][0] <= until


def test_nothing_is_left_of_a_pass_after_its_last_step() -> None:
    whole = DataPass(BatchSchedule.fixed(32), 100, 0)
    assert [whole.rest(step) for step in range(whole.steps + 1)] == [100, 68, 36, 4, 0]
