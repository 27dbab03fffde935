"""Chooses the machines that new nodes avoid, and the delay of the next node, after machines rejected pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Waiting

KEEP_OFF_SECONDS = 120.0
"""For how long new nodes keep off a silent machine: the cluster itself takes 50 s or so to see that it is."""
LONGEST_REST = 60.0
"""Seconds until a Job is made after machines did not take pods, one after another."""


class Machines:
    """The rejections of one job's pods by machines lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept_off: dict[str, float] = {}
        self._refusals = 0
        self._rest = (0.0, "")

    @property
    def avoided(self) -> list[str]:
        """Those that new nodes keep off, wherever others have room."""
        return [machine for machine, since in self._kept_off.items() if self._clock() - since < KEEP_OFF_SECONDS]

    @property
    def resting(self) -> Waiting | None:
        """The reason why the next node's Job is delayed; None where it is not."""
        until, why = self._rest
        return Waiting(Cause.ROOM, f"a machine did not take the last one: {why}") if self._clock() < until else None

    def keep_off(self, pod: Mapping[str, Any] | None) -> None:
        """Has new nodes keep off the machine of a pod that it did not end, did not take, or could not start."""
        machine = pod["spec"].get("nodeName") if pod is not None else None
        if machine:
            self._kept_off[machine] = self._clock()

    def rest(self, why: str) -> None:
        """Has new Jobs made the later, the more pods were not taken one after another."""
        now, (until, _) = self._clock(), self._rest
        self._refusals = self._refusals + 1 if now < until + LONGEST_REST else 1
        self._rest = (now + min(LONGEST_REST, 2.0**self._refusals), why)
