"""When a job follows its hints: at once downwards, and upwards when nothing was taken from it for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints import Debounce


class Job:
    """A target that follows its hints; GPUs are nodes."""

    def __init__(self, current: int, allowed: int | None = None) -> None:
        self.debounce = Debounce()
        self.current = current
        self.allowed = current if allowed is None else allowed

    def hint(self, allowed: int, now: float, wanted: int | None = None) -> tuple[int, float | None]:
        self.allowed = allowed
        self.debounce, self.current, wake_at = self.debounce.decide(
            allowed if wanted is None else wanted, self.current, now, grow_after=60.0, allowed=allowed
        )
        return self.current, wake_at

    def notice(self, now: float) -> None:
        self.debounce = self.debounce.note_notice(now, self.allowed)
        self.current -= 1


def test_growth_waits_for_nothing_since_the_start() -> None:
    job = Job(1)
    assert job.hint(4, now=0.0) == (4, None)
    assert job.hint(6, now=0.1) == (6, None)


def test_a_shrink_is_at_once_and_growth_waits_after_it() -> None:
    job = Job(4)
    assert job.hint(2, now=10.0) == (2, None)
    assert job.hint(4, now=11.0) == (2, 70.0)
    assert job.hint(4, now=69.9) == (2, 70.0)
    assert job.hint(4, now=70.0) == (4, None)


def test_the_wait_is_since_the_shrink_not_since_the_hints_rise() -> None:
    job = Job(4)
    job.hint(2, now=0.0)
    assert job.hint(3, now=59.0) == (2, 60.0)
    assert job.hint(4, now=60.0) == (4, None)


def test_a_shrink_within_the_wait_restarts_it() -> None:
    job = Job(4)
    job.hint(3, now=0.0)
    job.hint(2, now=30.0)
    assert job.hint(4, now=61.0) == (2, 90.0)


def test_a_noticed_node_comes_back_after_the_wait() -> None:
    job = Job(3)
    job.notice(now=100.0)
    assert job.hint(3, now=100.1) == (2, 160.0)
    assert job.hint(3, now=160.0) == (3, None)


def test_a_raised_number_lifts_the_wait_after_a_notice() -> None:
    job = Job(3)
    job.notice(now=0.0)
    assert job.hint(4, now=1.0) == (4, None)


def test_a_raise_without_more_nodes_lifts_it_too() -> None:
    job = Job(3)
    job.notice(now=0.0)
    assert job.hint(4, now=1.0, wanted=3) == (3, None)


def test_a_number_that_fell_after_the_notice_and_rose_again_is_raised() -> None:
    job = Job(3)
    job.notice(now=0.0)
    assert job.hint(2, now=1.0) == (2, None)
    assert job.hint(3, now=2.0) == (3, None)


def test_a_raised_number_does_not_lift_the_wait_after_a_shrink() -> None:
    job = Job(4)
    job.hint(3, now=0.0)
    assert job.hint(9, now=1.0) == (3, 60.0)


def test_a_raise_after_a_notice_leaves_the_wait_after_an_earlier_shrink() -> None:
    job = Job(4)
    job.hint(3, now=0.0)
    job.notice(now=10.0)
    assert job.hint(3, now=11.0) == (2, 70.0)
    assert job.hint(4, now=12.0) == (2, 60.0)
    assert job.hint(4, now=60.0) == (4, None)


def test_a_rewrite_never_lifts_the_wait() -> None:
    job = Job(3)
    job.notice(now=0.0)
    assert {job.hint(3, now=float(now)) for now in range(1, 60)} == {(2, 60.0)}


Steps = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6), st.booleans()), max_size=30)


@given(Steps)
def test_targets_never_exceed_the_hint_and_growth_waits(steps: list[tuple[int, int, bool]]) -> None:
    job, now, shrunk_at = Job(3), 0.0, -1e9
    for seconds, allowed, noticed in steps:
        now += seconds
        before = job.current
        if noticed and before:
            job.notice(now)
            before = job.current
        target, wake_at = job.hint(allowed, now)
        assert target in (before, allowed)
        assert target <= allowed
        assert target <= before or now - shrunk_at >= 60.0
        assert (wake_at is not None) == (target < allowed)
        assert wake_at is None or now < wake_at <= now + 60.0
        if target < before:
            shrunk_at = now


@given(Steps)
def test_whoever_asks_again_when_told_gets_what_is_allowed(steps: list[tuple[int, int, bool]]) -> None:
    job, now = Job(3), 0.0
    for seconds, allowed, noticed in steps:
        now += seconds
        if noticed and job.current:
            job.notice(now)
        _, wake_at = job.hint(allowed, now)
        if wake_at is not None:
            now = wake_at
            assert job.hint(allowed, now) == (allowed, None)
