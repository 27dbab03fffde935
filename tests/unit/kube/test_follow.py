"""Reading, watching and polling a collection: what comes after what, over all that may happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.kube.follow import FIRST_DELAY, LONGEST_DELAY, LOUD, POLL_SECONDS, POLLS, Act, Follow

FAILURES = st.builds(lambda status: ("failed", status), st.sampled_from([0, 401, 403, 405, 409, 410, 429, 500, 503]))
HAPPENINGS = st.one_of(
    FAILURES,
    st.builds(lambda version: ("done", str(version)), st.integers(1, 9)),
    st.builds(lambda version: ("saw", str(version)), st.integers(1, 9)),
    st.builds(lambda seconds: ("ended", seconds), st.sampled_from([0.0, 30.0])),
)


def after(happenings: list[tuple[str, object]], follow: Follow | None = None) -> Follow:
    follow = follow or Follow()
    for name, value in happenings:
        if name in ("saw", "ended") and follow.act is not Act.WATCH:
            continue  # only a watch shows changes
        if name == "done" and follow.act is Act.WATCH:
            continue
        follow = getattr(follow, name)(value)
    return follow


@given(st.lists(HAPPENINGS))
def test_every_wait_is_bounded_and_a_watch_has_a_version(happenings: list[tuple[str, object]]) -> None:
    follow = after(happenings)
    assert 0.0 <= follow.delay <= max(LONGEST_DELAY, POLL_SECONDS)
    assert (follow.act is Act.WATCH) == (follow.version is not None and not follow.polled)


@given(st.lists(HAPPENINGS), FAILURES)
def test_what_has_failed_is_not_tried_again_at_once(happenings: list[tuple[str, object]], failure: object) -> None:
    before = after(happenings)
    follow = after([failure], before)  # type: ignore[list-item]
    assert follow.delay > 0.0 or follow.act is not before.act


def test_a_collection_is_read_and_then_watched_from_there() -> None:
    follow = Follow()
    assert follow.act is Act.READ
    follow = follow.done("7")
    assert (follow.act, follow.version, follow.delay) == (Act.WATCH, "7", 0.0)
    follow = follow.saw("9").ended(30.0)
    assert (follow.act, follow.version, follow.delay) == (Act.WATCH, "9", 0.0)


def test_a_lost_connection_goes_on_where_it_was() -> None:
    follow = Follow().done("7").saw("9").failed(0)
    assert (follow.act, follow.version, follow.delay) == (Act.WATCH, "9", FIRST_DELAY)


def test_a_version_that_is_too_old_is_read_again() -> None:
    assert Follow().done("7").failed(410).act is Act.READ


def test_a_watch_that_expires_after_every_read_is_begun_ever_more_slowly() -> None:
    follow, delays = Follow(), []
    for _ in range(8):
        follow = follow.done("7").failed(410)
        delays.append(follow.delay)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY


def test_a_version_that_nobody_knows_is_given_up() -> None:
    follow = Follow().done("7")
    for _ in range(LOUD):
        assert follow.act is Act.WATCH
        follow = follow.failed(504)
    assert follow.act is Act.READ


@pytest.mark.parametrize("act", [Follow(), Follow().done("7")])
def test_where_watching_is_forbidden_it_is_polled_and_tried_again_later(act: Follow) -> None:
    follow = act.failed(403)
    assert (follow.act, follow.delay, follow.loud) == (Act.POLL, 0.0, False)
    for _ in range(POLLS):
        assert follow.act is Act.POLL
        follow = follow.done("")
        assert follow.delay == POLL_SECONDS
    assert follow.act is Act.READ


def test_where_nothing_is_permitted_it_is_told() -> None:
    follow = Follow().failed(403).failed(403)
    assert follow.loud
    assert follow.delay == POLL_SECONDS


def test_a_server_that_restarts_is_told_only_when_that_lasts() -> None:
    follow = Follow()
    for _ in range(LOUD - 1):
        follow = follow.failed(0)
        assert not follow.loud
    assert follow.failed(0).loud
    assert not follow.done("7").saw("8").loud


def test_the_server_says_how_long_to_wait() -> None:
    assert Follow().failed(429, retry_after=3.0).delay == 3.0
