"""Watches the launcher's own pod and its controllers, so that the meaning of a signal is known beforehand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.leadership.owner_state import UNKNOWN, Order, Unknown, Verdict, grace_of, judge
from elastic_launcher.engines.kubernetes.objects.names import Owner, owner_of
from elastic_launcher.kube.api import Api
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes

PLURALS = {("v1", "Pod"): "pods", ("batch/v1", "Job"): "jobs", ("argoproj.io/v1alpha1", "Workflow"): "workflows"}
"""The owners that can be watched; whether others are ending is unknown."""
SIGNAL_SECONDS = 0.1
"""How long a signal waits for the API to show its reason: in a step of Kubeflow it leaves 0.2 s."""


class OwnerWatch:
    """Watches what happens to the launcher, from how its own pod was at the start.

    Attributes:
        grace: Seconds that it has from SIGTERM until it is killed.
    """

    def __init__(self, pod: Mapping[str, Any]) -> None:
        self.grace = grace_of(pod)
        self._namespace = pod["metadata"]["namespace"]
        self._owner_is = owner_of(pod)
        self._pod_is = Owner("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["uid"])
        self._pod: Mapping[str, Any] | Unknown | None = pod
        self._owner: Mapping[str, Any] | Unknown | None = UNKNOWN
        self._changed = asyncio.Condition()

    async def run(self, api: Api, report: Callable[[Verdict], None]) -> None:
        """Follows both until it is cancelled; reports the verdict when the owner is ending, with each change then."""

        def take_owner(found: Mapping[str, Any] | Unknown | None) -> None:
            self._owner = found
            verdict = judge(self._pod, self._owner, signalled=False)
            if verdict.order is not Order.NOTHING:
                report(verdict)

        def take_pod(found: Mapping[str, Any] | Unknown | None) -> None:
            self._pod = found
            self.grace = grace_of(found) if isinstance(found, Mapping) else self.grace
            if self._owner_is == self._pod_is:
                self._owner = found

        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(api, self._pod_is, take_pod))
            if self._owner_is != self._pod_is and _plural(self._owner_is):
                group.create_task(self._follow(api, self._owner_is, take_owner))

    async def signalled(self) -> Verdict:
        """Returns what a signal that has just come means."""

        def can_tell() -> bool:
            return judge(self._pod, self._owner, signalled=True).order is Order.HAND_OVER or self._ends()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SIGNAL_SECONDS), self._changed:
                await self._changed.wait_for(can_tell)
        return judge(self._pod, self._owner, signalled=True)

    def _ends(self) -> bool:
        return judge(self._pod, self._owner, signalled=False).order is Order.STOP

    async def _follow(self, api: Api, one: Owner, take: Callable[[Mapping[str, Any] | Unknown | None], None]) -> None:
        root = "/api/v1" if one.api_version == "v1" else f"/apis/{one.api_version}"
        collection = Collection(f"{root}/namespaces/{self._namespace}/{_plural(one)}", name=one.name)
        async with contextlib.aclosing(changes(api, collection)) as found:
            async for change in found:
                take(_seen(change, one))
                async with self._changed:
                    self._changed.notify_all()


def _plural(one: Owner) -> str:
    return PLURALS.get((one.api_version, one.kind), "")


def _seen(change: Snapshot | Change | Trouble, one: Owner) -> Mapping[str, Any] | Unknown | None:
    """Returns an object as it is now; another one of its name is another."""
    match change:
        case Trouble():
            return UNKNOWN
        case Snapshot():
            found = next(iter(change.objects), None)
        case Change():
            found = None if change.deleted else change.object
    if found is None or (found.get("metadata") or {}).get("uid") != one.uid:
        return None
    return {**found, "kind": one.kind}  # the members of a list don't say it
