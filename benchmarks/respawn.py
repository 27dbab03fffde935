"""Measures the pause of a stock torchrun script when its size changes: under ``--resize respawn``, and under torchrun
alone.

Both run the same script, which saves each 10 steps and loads what is there. Pause: from the last step at the old size
to the first one at the new, less a usual step. From the hint: to that step from the moment at which the size was asked
for (an edit of the hints; an agent that is started, or gets SIGTERM): a node has to come up first.
"""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import SCRIPTS, finish, in_turn, launched, options_of, row, stamps, usual, wait_for, write_hint
from benchmarks.peer_torchrun import DESCRIBED, end_agents, free_port, torchrun_agent
from benchmarks.resize import SETTLED, Case

SCRIPT = SCRIPTS / "resize_train.py"
CASES = [Case("25 MB", 25, 400), Case("300 MB", 300, 256)]

Change = tuple[float, float]
"""Seconds of pause, and from the hint."""


def ours(case: Case) -> list[Change]:
    """Returns a grow and a shrink under the launcher."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        hints = folder / "hints.json"
        write_hint(hints, 1)
        flags = ("--nodes", "1:2", "--resize", "respawn", "--hints", hints)
        with launched(*flags, "--", SCRIPT, "peer", folder, *case.arguments):
            return _changes(folder, lambda: write_hint(hints, 2), lambda: write_hint(hints, 1))


def peer(case: Case) -> list[Change]:
    """Returns the same under torchrun alone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, port = Path(name), free_port()
        agents = [torchrun_agent(port, folder, SCRIPT, case.arguments, "1:2", host=True)]

        def grow() -> float:
            agents.append(torchrun_agent(port, folder, SCRIPT, case.arguments, "1:2", host=False))
            return time.monotonic()

        def shrink() -> float:
            agents[1].send_signal(signal.SIGTERM)
            return time.monotonic()

        try:
            return _changes(folder, grow, shrink)
        finally:
            end_agents(agents)


def _changes(folder: Path, grow: Callable[[], float], shrink: Callable[[], float]) -> list[Change]:
    def rows() -> list[dict[str, Any]]:
        return sorted((r for one in stamps(folder).values() for r in one), key=lambda r: r["t"])

    wait_for("steps", lambda: len(rows()) > SETTLED)
    grown = grow()
    wait_for("steps of two", lambda: sum(r["w"] == 2 for r in rows()) > 4 * SETTLED)
    shrunk = shrink()
    wait_for("steps of one", lambda: sum(r["w"] == 1 and r["t"] > shrunk for r in rows()) > SETTLED)
    return [_measure(rows(), grown, 2), _measure(rows(), shrunk, 1)]


def _measure(rows: list[dict[str, Any]], told: float, size: int) -> Change:
    first = next(r["t"] for r in rows if r["w"] == size and r["t"] > told)
    last = max(r["t"] for r in rows if r["w"] != size and r["t"] < first)
    return first - last - usual(rows, 1), first - told


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    print(DESCRIBED)
    rows = []
    for case, found, theirs in in_turn(CASES, options, ours, peer):
        for number, change in enumerate(("grow 1 to 2", "shrink 2 to 1")):
            one = row(
                "respawn",
                [f[number][0] for f in found],
                [t[number][0] for t in theirs],
                "seconds of pause",
                case=f"{change}, {case.name}",
                ours_from_hint=round(statistics.median(f[number][1] for f in found), 2),
                peer_from_hint=round(statistics.median(t[number][1] for t in theirs), 2),
            )
            pauses = f"ours {one['ours']:.2f} s, peer {one['peer']:.2f} s, {one['ratio']:.1f} times less"
            hints = f"from the hint: ours {one['ours_from_hint']} s, peer {one['peer_from_hint']} s"
            print(f"{one['case']}: {pauses}; {hints}; all: {one['ours_all']}, {one['peer_all']}", flush=True)
            rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
