"""From what a source of hints yields to targets and events, with real waits of hundredths of a second."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.deadlines import RECLAIM_SECONDS
from elastic_launcher.coordinator.model.event_replay import LastHint
from elastic_launcher.coordinator.model.state import Target
from elastic_launcher.coordinator.runtime.hint_follower import Clocks, HintFollower
from elastic_launcher.hints import HintError, HintRead

PATIENCE = 10.0


def document(allowed: int, grow_after: float = 60.0, **more: Any) -> str:
    """A document of one entry for every job."""
    entry = {"match": {}, "gpus": {"guaranteed": 1, "allowed": allowed, "limit": 8}, "growAfterSeconds": grow_after}
    return json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry], **more})


class Source:
    """A source that yields what the test writes."""

    name = "hints.json"

    def __init__(self) -> None:
        self._reads: asyncio.Queue[HintRead] = asyncio.Queue()

    def write(self, text: str | None, identity: str = "1") -> None:
        self._reads.put_nowait(HintRead(text, identity))

    async def changes(self) -> AsyncIterator[HintRead]:
        while True:
            yield await self._reads.get()


class Played:
    """A quota under test, and all that it told."""

    def __init__(
        self,
        fixed: bool = False,
        goes_on: tuple[int, float | None] | None = None,
        held: LastHint | None = None,
        tells_kinds: bool = False,
        **config: Any,
    ) -> None:
        settings = {"script": "train.py", "min_nodes": 1, "max_nodes": 4, "hints": "hints.json", **config}
        self.source = Source()
        self.told: list[tuple[Target, str]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.quota = HintFollower(
            JobConfig(**settings),
            "train-1f2e",
            None if fixed else self.source,
            lambda target, message: self.told.append((target, message)),
            lambda kind, **fields: self.events.append((kind, fields)),
            Clocks(time.monotonic, time.time),
            held,
            tells_kinds,
        )
        if goes_on is not None:
            self.quota.resume(*goes_on)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)

    async def expect(self, *expected: int) -> None:
        """Waits for these targets, one after another from the start."""
        await self.until(lambda: len(self.told) >= len(expected))
        assert [target.nodes for target, _ in self.told] == list(expected)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for one, fields in self.events if one == kind]


def play(story: Callable[[Played], Awaitable[None]], **settings: Any) -> Played:
    """Runs a quota and a test beside it, until the test, or the quota, ends."""

    async def both() -> Played:
        played = Played(**settings)
        tasks = {asyncio.ensure_future(one) for one in (played.quota.watch(), played.quota.run())}
        testing = asyncio.ensure_future(story(played))
        waiting = {*tasks, testing}
        try:
            while not testing.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        finally:
            for one in (*tasks, testing):
                one.cancel()
            await asyncio.gather(*tasks, testing, return_exceptions=True)
        return played

    return asyncio.run(both())


@pytest.mark.parametrize(("guaranteed", "within"), [(0, 0), (3, 1), (4, 2), (None, None)])
def test_whole_nodes_within_the_guarantee_are_counted_where_they_differ_from_the_others(
    guaranteed: int | None, within: int | None
) -> None:
    async def story(played: Played) -> None:
        numbers = {"allowed": 6} if guaranteed is None else {"allowed": 6, "guaranteed": guaranteed}
        played.source.write(json.dumps({"apiVersion": "elastic-hints/v1", "defaults": {"gpus": numbers}}))
        await played.expect(3)

    assert play(story, tells_kinds=True, nproc_per_node=2).told[0][0].within == within
    assert play(story, nproc_per_node=2).told[0][0].within is None


def test_other_nodes_that_go_first_are_another_target() -> None:
    async def story(played: Played) -> None:
        for nodes in ([3], [2, 3]):
            entry = {"match": {"id": "train-1f2e"}, "gpus": {"allowed": 3}, "leave": nodes}
            played.source.write(json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry]}))
        await played.expect(3, 3)

    assert [target.leave for target, _ in play(story).told] == [{3}, {2, 3}]


async def forever(played: Played) -> None:
    await asyncio.Event().wait()


def test_without_hints_the_target_is_the_maximum() -> None:
    async def story(played: Played) -> None:
        await played.expect(4)

    assert play(story, fixed=True, hints=None).told == [(Target(4, "start"), "")]


def test_the_first_document_gives_the_first_target() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(3, generation=7))
        await played.expect(3)

    played = play(story)
    assert played.told == [(Target(3, "start", 1, 3, 8), "")]
    assert played.of("hint_applied") == [
        {
            "hint_generation": 7,
            "guaranteed": 1,
            "allowed": 3,
            "limit": 8,
            "target_nodes": 3,
            "source": "hints.json",
            "match": "hints[0]",
            "stale": False,
            "reclaim_by": None,
        }
    ]


def test_a_newer_document_is_recorded_although_its_numbers_are_the_same() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(3, generation=7))
        await played.expect(3)
        played.source.write(document(3, generation=8))
        await played.until(lambda: len(played.of("hint_applied")) == 2)

    events = play(story).of("hint_applied")
    found = [(event["hint_generation"], event["allowed"], event.get("renewed")) for event in events]
    assert found == [(7, 3, None), (8, 3, True)]


def test_an_entry_by_the_jobs_id_wins_over_one_by_its_name() -> None:
    rows = [{"match": {key: name}, "gpus": {"allowed": gpus}} for key, name, gpus in (
        ("job", "train", 2), ("id", "train-1f2e", 3), ("id", "train-5b10", 4)
    )]  # fmt: skip

    async def story(played: Played) -> None:
        played.source.write(json.dumps({"apiVersion": "elastic-hints/v1", "hints": rows}))
        await played.expect(3)

    assert play(story).of("hint_applied")[0]["match"] == "hints[1]"


def test_targets_follow_the_document() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(1))
        await played.expect(1)
        played.source.write(document(3))
        await played.expect(1, 3)
        played.source.write(document(2))
        await played.expect(1, 3, 2)

    played = play(story)
    assert [target.cause for target, _ in played.told] == ["start", "hint", "hint"]


def test_ranks_are_no_more_than_the_first_batch_has_samples_until_the_job_reports_a_larger_maximum() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(4))
        await played.expect(2)
        played.quota.note_most_samples(3)
        await played.expect(2, 3)
        played.quota.note_most_samples(64)
        await played.expect(2, 3, 4)

    play(story, global_batch_size=2)


@pytest.mark.parametrize(
    ("config", "held"),
    [
        ({"autoscale_batch_size": 3}, None),
        ({"autoscale_batch_size": 3}, LastHint(2, 2, 64)),
        ({}, LastHint(2, 2, 3)),
    ],
)
def test_the_maximum_of_a_batch_that_adapts_counts_from_the_start_where_it_is_known(
    config: dict[str, Any], held: LastHint | None
) -> None:
    async def story(played: Played) -> None:
        played.source.write(document(4))
        await played.expect(3)

    play(story, global_batch_size=2, held=held, **config)


def test_growth_waits_after_a_shrink() -> None:
    async def story(played: Played) -> None:
        for allowed, targets in ((3, (3,)), (2, (3, 2))):
            shrunk = time.monotonic()
            played.source.write(document(allowed, grow_after=0.2))
            await played.expect(*targets)
        played.source.write(document(4, grow_after=0.2))
        await played.until(lambda: any(target.allowed == 4 for target, _ in played.told))
        assert played.told[-1][0].nodes == 2
        await played.until(lambda: played.told[-1][0].nodes == 4)
        assert time.monotonic() - shrunk >= 0.2

    play(story)


def test_growth_waits_after_a_notice_and_a_rewrite_does_not_lift_that() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(3, grow_after=0.2))
        await played.expect(3)
        noticed = time.monotonic()
        played.quota.note_notice(2)
        played.source.write(document(3, grow_after=0.2) + " ")
        await played.until(lambda: played.told[-1] != played.told[0] or time.monotonic() - noticed > 1)
        assert [target.nodes for target, _ in played.told] == [3, 3]
        assert time.monotonic() - noticed >= 0.19

    play(story)


def test_a_raised_number_lifts_the_wait_after_a_notice() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(3))
        await played.expect(3)
        played.quota.note_notice(2)
        played.source.write(document(4))
        await played.expect(3, 4)

    play(story)


def test_without_hints_a_noticed_node_is_replaced_by_the_rule_for_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.coordinator.runtime.hint_follower.DEFAULT_GROW_AFTER", 0.2)

    async def story(played: Played) -> None:
        await played.expect(4)
        noticed = time.monotonic()
        played.quota.note_notice(3)
        await played.expect(4, 4)
        assert time.monotonic() - noticed >= 0.19

    play(story, fixed=True, hints=None)


def test_too_little_at_the_start_is_told_at_once() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(1))
        await played.expect(0)

    [(target, message)] = play(story, min_nodes=2).told
    assert target.nodes == 0
    assert message == (
        "hints: hints.json allows 1 GPU, and the job needs at least 2 (2 nodes of 1); "
        "raise `allowed`, or wait with --wait-for-quota SECONDS"
    )


def test_quota_is_waited_for() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(1))
        await played.until(lambda: bool(played.of("quota_wait")))
        assert played.told == []
        played.source.write(document(2))
        await played.expect(2)

    played = play(story, min_nodes=2, wait_for_quota=30.0)
    assert "up to 30 s: hints: hints.json allows 1 GPU" in played.of("quota_wait")[0]["message"]
    assert len(played.of("quota_back")) == 1


def test_quota_is_not_waited_for_longer_than_was_asked() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(1))
        await played.expect(0)

    [(_, message)] = play(story, min_nodes=2, wait_for_quota=0.1).told
    assert message.endswith(
        "needs at least 2 (2 nodes of 1) after 0.1 s; "
        "raise `allowed`, or wait longer than 0.1 s with --wait-for-quota SECONDS"
    )


def waiting_document(allowed: int, seconds: float) -> str:
    """Returns hints that also say for how long a job waits for quota."""
    entry = {"gpus": {"allowed": allowed}, "growAfterSeconds": 60.0, "waitSeconds": seconds}
    return json.dumps({"apiVersion": "elastic-hints/v1", "defaults": entry})


def test_quota_is_waited_for_as_long_as_the_hint_says_where_the_user_has_not() -> None:
    async def story(played: Played) -> None:
        played.source.write(waiting_document(1, 30.0))
        await played.until(lambda: bool(played.of("quota_wait")))
        played.source.write(waiting_document(2, 600.0))
        await played.expect(2)

    played = play(story, min_nodes=2)
    assert "up to 30 s: hints: hints.json allows 1 GPU" in played.of("quota_wait")[0]["message"]
    assert [event["wait_seconds"] for event in played.of("hint_applied")] == [30.0, 600.0]
    assert played.told[0][0].wait == 600.0


@pytest.mark.parametrize(("said", "hint"), [(0.0, 600.0), (None, 0.0), (0.1, 600.0), (None, 0.1)])
def test_what_the_user_said_of_waiting_holds_whatever_the_hint_says(said: float | None, hint: float) -> None:
    async def story(played: Played) -> None:
        played.source.write(waiting_document(1, hint))
        await played.expect(0)

    [(target, _)] = play(story, min_nodes=2, wait_for_quota=said).told
    assert target.wait == (hint if said is None else None)


def test_a_wait_that_the_hint_cuts_short_is_over() -> None:
    async def story(played: Played) -> None:
        played.source.write(waiting_document(1, 600.0))
        await played.until(lambda: bool(played.of("quota_wait")))
        played.source.write(waiting_document(1, 0.0))
        await played.expect(0)

    play(story, min_nodes=2)


def test_too_little_while_running_is_told_with_the_numbers() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(2))
        await played.expect(2)
        played.source.write(document(1))
        await played.expect(2, 0)

    assert "allows 1 GPU, and the job needs at least 2" in play(story, min_nodes=2).told[-1][1]


def test_absent_at_the_start_is_the_minimum_with_a_warning() -> None:
    async def story(played: Played) -> None:
        played.source.write(None)
        await played.expect(2)
        played.source.write(document(3))
        await played.expect(2, 3)

    [event] = play(story, min_nodes=2).of("hint_missing")
    assert event["message"] == (
        "hints: hints.json: it is not there; the job trains with its minimum, 2 nodes, and follows the hints once "
        "they are there; --require-hints makes this an error"
    )


def test_absent_at_the_start_is_an_error_where_they_are_required() -> None:
    async def story(played: Played) -> None:
        played.source.write(None)
        await forever(played)

    with pytest.raises(HintError, match="it is not there; --require-hints asks for them$"):
        play(story, require_hints=True)


def test_malformed_at_the_start_is_an_error() -> None:
    async def story(played: Played) -> None:
        played.source.write("{")
        await forever(played)

    with pytest.raises(HintError, match="hints.json: not JSON"):
        play(story)


@pytest.mark.parametrize(("text", "event"), [("{", "hint_rejected"), (None, "hint_missing")])
def test_what_comes_later_and_is_no_document_changes_nothing(text: str | None, event: str) -> None:
    async def story(played: Played) -> None:
        played.source.write(document(2))
        await played.expect(2)
        played.source.write(text)
        await played.until(lambda: bool(played.of(event)))
        played.source.write(document(3), identity="2")
        await played.expect(2, 3)

    assert len(play(story).of(event)) == 1


def reclaiming(by: str, to: int = 1) -> str:
    """A document that allows four GPUs, and takes all but some of them back."""
    entry = {"match": {}, "gpus": {"allowed": 4}, "growAfterSeconds": 60, "reclaim": {"to": to, "by": by}}
    return json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry]})


def test_a_reclaim_says_when_its_nodes_may_be_killed_by_the_clock_that_nobody_sets() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(4))
        await played.expect(4)
        before = time.monotonic()
        played.source.write(reclaiming(datetime.fromtimestamp(time.time() + 1000, UTC).isoformat()))
        await played.expect(4, 1)
        assert 1000 <= played.told[1][0].by - before + 1e-3 < 1000 + PATIENCE

    assert play(story).told[0][0].by == math.inf


def test_a_reclaim_whose_time_is_over_leaves_the_seconds_that_leaving_takes() -> None:
    async def story(played: Played) -> None:
        before = time.monotonic()
        played.source.write(reclaiming("2001-01-01T00:00:00Z"))
        await played.expect(1)
        assert RECLAIM_SECONDS <= played.told[0][0].by - before < RECLAIM_SECONDS + PATIENCE

    play(story)


def test_another_time_of_a_reclaim_is_told_and_the_same_one_is_not() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(4))
        for by in ("2998-01-01T00:00:00Z", "2998-01-01T00:00:00+00:00", "2999-01-01T00:00:00Z"):
            played.source.write(reclaiming(by))
        await played.until(lambda: len(played.of("hint_applied")) == 4)
        played.source.write(document(4))
        await played.until(lambda: len(played.told) == 4)

    told = [target for target, _ in play(story).told]
    assert [target.nodes for target in told] == [4, 1, 1, 1]
    assert told[1].by < told[2].by < told[3].by == math.inf


def test_a_malformed_time_of_a_reclaim_is_said_with_its_key_and_changes_nothing() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(4))
        played.source.write(reclaiming("tomorrow"))
        await played.until(lambda: bool(played.of("hint_rejected")))
        await played.expect(4)

    [rejected] = play(story).of("hint_rejected")
    assert '"by" is "tomorrow" (hints[0].reclaim.by); it must be a time' in rejected["message"]


def test_a_stale_document_never_raises() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(2))
        await played.expect(2)
        old = {"observedAt": "2020-01-01T00:00:00Z", "ttlSeconds": 60}
        played.source.write(document(4, **old))
        await played.until(lambda: len(played.of("hint_applied")) == 2)
        played.source.write(document(1, **old))
        await played.until(lambda: played.told[-1][0].nodes == 1)
        assert max(target.nodes for target, _ in played.told) == 2

    assert play(story).of("hint_applied")[1]["stale"]


def test_a_document_from_the_future_is_warned_of_once() -> None:
    async def story(played: Played) -> None:
        played.source.write(document(2, observedAt="2999-01-01T00:00:00Z", ttlSeconds=60))
        await played.expect(2)
        played.quota.note_notice(1)
        played.quota.note_notice(1)

    assert len(play(story).of("warning")) == 1


def test_an_error_in_the_source_is_not_lost() -> None:
    class Broken(Source):
        async def changes(self) -> AsyncIterator[HintRead]:
            raise RuntimeError("a bug")
            yield

    async def story(played: Played) -> None:
        await forever(played)

    async def both() -> None:
        played = Played()
        played.quota._source = Broken()
        await played.quota.watch()

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(both())


def test_a_job_that_runs_already_goes_on_at_its_size_until_the_hints_are_read() -> None:
    async def story(played: Played) -> None:
        await played.expect(2)
        played.source.write(document(3))
        await played.expect(2, 3)

    assert play(story, goes_on=(2, None)).of("hint_applied")[0]["target_nodes"] == 3


def test_a_hint_below_the_minimum_of_a_job_that_runs_already_is_told_at_once() -> None:
    async def story(played: Played) -> None:
        await played.expect(2)
        played.source.write(document(1))
        await played.expect(2, 0)

    assert "the job needs at least 2" in play(story, goes_on=(2, None), min_nodes=2, wait_for_quota=60.0).told[-1][1]


@pytest.mark.parametrize(("ago", "expected"), [(None, 4), (100.0, 4), (10.0, 2)])
def test_growth_waits_for_what_was_taken_before_the_launcher_came_back(ago: float | None, expected: int) -> None:
    async def story(played: Played) -> None:
        await played.expect(expected)

    assert play(story, goes_on=(2, ago), fixed=True, hints=None).told[0][0].nodes == expected


@pytest.mark.parametrize(("last", "nodes"), [(LastHint(3, 3), 3), (LastHint(9, 9), 4), (LastHint(), 2)])
def test_a_job_that_had_begun_goes_on_by_the_last_hint_while_none_can_be_used(last: LastHint, nodes: int) -> None:
    async def story(played: Played) -> None:
        played.source.write("{")
        await played.expect(nodes)
        played.source.write(document(2, grow_after=0))
        await played.until(lambda: played.told[-1][0].nodes == 2)

    (said,) = play(story, held=last, min_nodes=2).of("hint_rejected")
    assert "not JSON" in said["message"]
    assert said["message"].endswith(f"with {nodes} nodes, until they can be used")


@pytest.mark.parametrize("required", [True, False])
def test_hints_that_are_not_there_change_nothing_for_a_job_that_had_begun(required: bool) -> None:
    async def story(played: Played) -> None:
        played.source.write(None)
        await played.expect(3)

    (said,) = play(story, held=LastHint(3, 3), require_hints=required).of("hint_missing")
    assert "goes on by the last hint that it followed, with 3 nodes" in said["message"]


@pytest.mark.parametrize("wait", [0.0, 0.2])
@pytest.mark.parametrize("text", ["{", None])
def test_a_job_that_had_begun_and_may_not_go_on_by_the_last_hint_waits_or_ends(text: str | None, wait: float) -> None:
    async def story(played: Played) -> None:
        played.source.write(text)
        await played.expect(0)

    message = play(story, held=LastHint(0, 0), wait_for_quota=wait).told[-1][1]
    assert message.startswith("hints: hints.json allows 0 GPUs, and the job needs at least 1")


def test_a_running_job_says_that_it_keeps_its_size_while_no_hint_can_be_used() -> None:
    async def story(played: Played) -> None:
        played.source.write("{")
        await played.until(lambda: bool(played.of("hint_rejected")))

    (said,) = play(story, goes_on=(2, None)).of("hint_rejected")
    assert said["message"].endswith("; the running job keeps its size, 2 nodes, until they can be used")
