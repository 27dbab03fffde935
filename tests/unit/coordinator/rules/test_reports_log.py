"""``job.log`` on one rank, on another, on several: what is written, and what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.control.messages import Log
from elastic_launcher.coordinator.api.live_status import live_status
from elastic_launcher.events import Event
from elastic_launcher.report.state import fold
from tests.support.played_job import training


@pytest.mark.parametrize(
    ("logs", "written", "last"),
    [
        pytest.param([(9, 0, {"a": 1})], [(9, 0, {"a": 1})], {"a": 1}, id="rank 0 alone"),
        pytest.param([(9, 1, {"a": 1})], [(9, 1, {"a": 1})], {"a": 1}, id="rank 1 alone"),
        pytest.param(
            [(9, 0, {"a": 1}), (9, 1, {"a": 2}), (9, 2, {"a": 3})], [(9, 0, {"a": 1})], {"a": 1}, id="all in order"
        ),
        pytest.param(
            [(9, 1, {"a": 2}), (9, 0, {"a": 1}), (9, 2, {"a": 3})],
            [(9, 1, {"a": 2}), (9, 0, {"a": 1})],
            {"a": 1},
            id="rank 1's first: rank 0's replaces it",
        ),
        pytest.param(
            [(9, 0, {"a": 1}), (9, 1, {"a": 2, "b": 3})],
            [(9, 0, {"a": 1}), (9, 1, {"b": 3})],
            {"a": 1, "b": 3},
            id="names are apart",
        ),
        pytest.param(
            [(9, 0, {"a": 1}), (9, 0, {"a": 2})],
            [(9, 0, {"a": 1}), (9, 0, {"a": 2})],
            {"a": 2},
            id="one rank twice: its last",
        ),
        pytest.param(
            [(9, 0, {"a": 1}), (10, 0, {"a": 2}), (9, 1, {"a": 3}), (10, 1, {"a": 4})],
            [(9, 0, {"a": 1}), (10, 0, {"a": 2})],
            {"a": 2},
            id="a rank that is a step behind",
        ),
        pytest.param(
            [(9, 1, {"a": 3}), (10, 1, {"a": 4}), (9, 0, {"a": 1}), (10, 0, {"a": 2})],
            [(9, 1, {"a": 3}), (10, 1, {"a": 4}), (9, 0, {"a": 1}), (10, 0, {"a": 2})],
            {"a": 2},
            id="rank 0 a step behind",
        ),
        pytest.param(
            [(10, 1, {"a": 2}), (9, 0, {"a": 1})],
            [(10, 1, {"a": 2}), (9, 0, {"a": 1})],
            {"a": 2},
            id="a later step is the last one, whoever logged it",
        ),
        pytest.param([(9, 0, {})], [], {}, id="nothing"),
    ],
)
def test_ranks_that_log_the_same_count_once(
    logs: list[tuple[int, int, dict[str, Any]]], written: list[tuple[int, int, dict[str, Any]]], last: dict[str, Any]
) -> None:
    job = training(3)
    for step, rank, values in logs:
        job.report(job.state.group[rank], Log(step, rank, values))
    told = job.events("log")
    assert told == [{"step": step, "rank": rank, "values": values} for step, rank, values in written]
    assert live_status(job.state)["log"] == last
    assert fold(Event("log", 0.0, 1, fields) for fields in told).logged == last


def test_events_of_a_job_that_did_not_tell_the_rank_are_read() -> None:
    events = [Event("log", 0.0, 1, {"step": 3, "values": {"a": 1}}), Event("log", 0.0, 1, {"values": {"b": 2}})]
    assert fold(events).logged == {"a": 1, "b": 2}
