"""When it is said why nodes wait."""

from __future__ import annotations

from elastic_launcher.cli.cluster_escort import PENDING_SECONDS, PendingLine
from elastic_launcher.engines.kubernetes.pods import Cause, Running, Standing, Waiting

RUNS = Running(("10.0.0.1",), "node-1")
WAITS = Waiting(Cause.ROOM, "0/2 nodes are available")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reason_that_lasts_is_told_once_and_one_that_passes_never() -> None:
    clock = Clock()
    line = PendingLine(clock)

    def after(seconds: float, *standings: Standing) -> str:
        clock.now += seconds
        return line.take(dict(enumerate(standings, start=1)), True)

    assert after(0, RUNS, Waiting(Cause.STARTING, "its container is being started")) == ""
    assert after(PENDING_SECONDS - 1, RUNS, WAITS) == ""
    assert after(PENDING_SECONDS - 1, RUNS, WAITS) == ""
    assert after(1, RUNS, WAITS).startswith("1 of 2 nodes pending: 0/2 nodes are available. Training goes on with 1")
    assert after(100, RUNS, WAITS) == ""
    assert after(1, RUNS, RUNS) == ""
    assert after(1, RUNS, WAITS) == ""
    assert after(PENDING_SECONDS, RUNS, WAITS).startswith("1 of 2 nodes pending")
