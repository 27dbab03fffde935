"""What is recorded of the controller's changes: the newest in a ConfigMap, and each as an Event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.api import Api
from elastic_launcher.quota.cluster.record import MOST_BYTES, MOST_CHANGES, Recorder, event_of, trimmed
from elastic_launcher.quota.rounds.round import Change
from elastic_launcher.quota.sources.machines import Service
from tests.support.fake_cluster import FakeCluster

HINTS = Reference("quota", "gpu-hints")
NOW = 1_790_000_000.0
BERT = Service("nlp", "bert", "uid-bert", NOW, None)
SHRINK = Change("bert", "nlp", 4, 2, "guarantee", "4 → 2 GPUs: project vision asks for 2 of its 2 guaranteed")


def change(number: int) -> Change:
    return Change("bert", "nlp", number, number + 1, "free", f"{number} → {number + 1} GPUs: nobody else can use them")


@pytest.mark.parametrize(
    ("before", "after", "reason"), [(4, 2, "QuotaLowered"), (4, 0, "QuotaPaused"), (0, 2, "QuotaRaised")]
)
def test_an_event_says_what_changed_and_why(before: int, after: int, reason: str) -> None:
    event = event_of(Change("bert", "nlp", before, after, "free", "x" * 2000), BERT, NOW, "pod-1")
    assert event["reason"] == reason and event["message"] == "x" * 1024
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "namespace": "nlp",
        "name": "bert",
        "uid": "uid-bert",
    }
    assert event["lastTimestamp"] == "2026-09-21T14:13:20Z"


def test_the_newest_lines_of_a_history_are_kept() -> None:
    text = "".join(f"{number}\n" for number in range(MOST_CHANGES + 5))
    assert trimmed(text).split() == [str(number) for number in range(5, MOST_CHANGES + 5)]
    long = "".join(f"{number} {'ä' * (MOST_BYTES // 8)}\n" for number in range(10))
    kept = trimmed(long)
    assert len(kept.encode()) <= MOST_BYTES and kept == long[-len(kept) :] and kept.startswith("7 ")


Steps = Callable[[FakeCluster, Recorder, list[str]], Awaitable[None]]


def play(steps: Steps) -> None:
    """Runs the steps of a test with a recorder; job ``bert`` has a Service."""

    async def run() -> None:
        cluster, said = FakeCluster(), list[str]()
        services = {"bert": BERT}
        async with cluster.serve() as login, Api(login) as api, asyncio.timeout(30):
            await steps(cluster, Recorder(api, HINTS, services.get, said.append, "pod-1"), said)

    asyncio.run(run())


def rows(cluster: FakeCluster) -> list[dict[str, Any]]:
    found = cluster.get("configmaps", "gpu-hints-history", "quota")
    assert found is not None
    return [json.loads(line) for line in found["data"]["history.jsonl"].splitlines()]


def test_changes_are_added_to_the_history_and_told_on_the_service() -> None:
    async def steps(cluster: FakeCluster, recorder: Recorder, said: list[str]) -> None:
        recorder.take((SHRINK,), NOW)
        assert await recorder.flush()
        recorder.take((change(2), Change("gone", "nlp", 1, 0, "capacity", "1 → 0 GPUs")), NOW + 1)
        assert await recorder.flush() and await recorder.flush()
        assert [(row["job"], row["before"], row["time"]) for row in rows(cluster)] == [
            ("bert", 4, NOW),
            ("bert", 2, NOW + 1),
            ("gone", 1, NOW + 1),
        ]
        assert [one["message"] for one in cluster.all("events")] == [SHRINK.reason, change(2).reason]
        assert said == []

    play(steps)


def test_what_can_not_be_written_now_is_said_once_and_written_later() -> None:
    async def steps(cluster: FakeCluster, recorder: Recorder, said: list[str]) -> None:
        cluster.down = True
        recorder.take((SHRINK,), NOW)
        assert not await recorder.flush() and not await recorder.flush()
        recorder.take((change(2),), NOW + 1)
        cluster.down = False
        assert await recorder.flush()
        assert [row["before"] for row in rows(cluster)] == [4, 2]
        (line,) = said
        assert line.startswith("ConfigMap gpu-hints-history: the history can't be written: ")

    play(steps)


def test_events_that_are_refused_leave_the_history() -> None:
    async def steps(cluster: FakeCluster, recorder: Recorder, said: list[str]) -> None:
        cluster.forbidden = {("create", "events")}
        recorder.take((SHRINK, change(2)), NOW)
        assert await recorder.flush()
        assert len(rows(cluster)) == 2
        assert said == ["Service nlp/bert: no Event can be written: may not create events"]

    play(steps)


def test_the_projects_document_in_force_is_kept_beside_the_history() -> None:
    async def steps(cluster: FakeCluster, recorder: Recorder, said: list[str]) -> None:
        assert await recorder.kept_projects() is None
        recorder.keep_projects(b"projects: []")
        recorder.take((SHRINK,), NOW)
        assert await recorder.flush()
        assert await recorder.kept_projects() == b"projects: []"
        asked = len(cluster.asked)
        recorder.keep_projects(b"projects: []")
        assert await recorder.flush() and len(cluster.asked) == asked, "it is written once"
        assert len(rows(cluster)) == 1

    play(steps)
