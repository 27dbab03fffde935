"""Plays a schedule on the cluster, and judges the job that went through it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from tests.chaos.judge import judge
from tests.chaos.play import Outcome, outcome_of
from tests.chaos.schedule import Schedule
from tests.cluster.chaos.conduct import ClusterConductor
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster.stage import staged


def play(schedule: Schedule, say: Callable[[str], None]) -> Outcome:
    """Plays a schedule.

    Args:
        schedule: What is to happen.
        say: Takes a line about each act.
    """

    def lead(root: Path, found: list[str]) -> None:
        try:
            with (root / "launcher.log").open("w") as log, redirect_stdout(log), staged(root, "chaos") as stage:
                conductor = ClusterConductor(stage, schedule, say)
                code = conductor.play()
                assert code == 0, f"exit code {code} ({conductor.events[-1].get('message')})"
                found.append(f"{judge(conductor.folder, conductor.events, schedule)} steps as in one process")
        except ClusterError as error:
            raise AssertionError(f"the cluster: {error}") from error

    return outcome_of(f"cluster-chaos-{schedule.seed}", lead)
