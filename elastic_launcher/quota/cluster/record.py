"""Records the controller's changes in a cluster: the newest in a ConfigMap, and each as an Event on its job's Service.

The ConfigMap keeps the projects document that was in force last, too: a controller that starts while that is broken
goes on with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.api import CONFLICT, MERGE, Api, ApiError, find
from elastic_launcher.quota.cluster.rights import history_of
from elastic_launcher.quota.history import lines_of
from elastic_launcher.quota.problems import Problems
from elastic_launcher.quota.rounds.round import Change
from elastic_launcher.quota.sources.machines import Service

HISTORY_KEY, PROJECTS_KEY = "history.jsonl", "projects.yaml"
MOST_CHANGES = 1000
MOST_BYTES = 400_000
"""Of the history: a ConfigMap holds 1 MiB, and the projects document has to fit beside it."""
MOST_WAITING = 1000
"""Changes that wait to be recorded while the API server is away; the oldest are dropped."""
TRIES = 5
RETRY_SECONDS = 5.0
LONGEST_MESSAGE = 1024
"""Characters of an Event's message that the API takes."""
COMPONENT = "elastic-launcher-quota"


def trimmed(text: str) -> str:
    """Returns the newest lines of a history, as many as are kept."""
    kept: deque[str] = deque()
    size = 0
    for line in reversed(text.splitlines(keepends=True)[-MOST_CHANGES:]):
        size += len(line.encode())
        if size > MOST_BYTES:
            break
        kept.appendleft(line)
    return "".join(kept)


def event_of(change: Change, service: Service, now: float, instance: str) -> dict[str, Any]:
    """Returns the Event of a change.

    Args:
        change: The change.
        service: The job's Service.
        now: When it was made, in seconds since the epoch.
        instance: Which controller made it.
    """
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"generateName": f"{service.id}.quota."},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": service.namespace,
            "name": service.id,
            "uid": service.uid,
        },
        "type": "Normal",
        "reason": "QuotaRaised" if change.after > change.before else "QuotaLowered" if change.after else "QuotaPaused",
        "message": change.reason[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


@dataclass(frozen=True, slots=True)
class _Waiting:
    change: Change
    at: float
    service: Service | None


class Recorder:
    """Writes what it is given in the background, so that no round waits for it.

    Args:
        api: The cluster.
        hints: The ConfigMap with the hints.
        service: Returns the Service of a job, or None.
        say: Takes a line for the log.
        instance: Which controller this is.
    """

    def __init__(
        self,
        api: Api,
        hints: Reference,
        service: Callable[[str], Service | None],
        say: Callable[[str], None],
        instance: str,
    ) -> None:
        self._api = api
        self._name = history_of(hints)
        self._path = f"/api/v1/namespaces/{hints.namespace}/configmaps"
        self._service = service
        self._instance = instance
        self._changes: list[_Waiting] = []
        self._projects: str | None = None
        self._written: str | None = None
        self._wake = asyncio.Event()
        self._problems = Problems(say)

    def take(self, changes: tuple[Change, ...], now: float) -> None:
        """Takes the changes of a round."""
        taken = [_Waiting(change, now, self._service(change.job)) for change in changes]
        self._changes = [*self._changes, *taken][-MOST_WAITING:]
        self._wake.set()

    def keep_projects(self, document: bytes) -> None:
        """Takes the projects document that is in force."""
        self._projects = document.decode(errors="replace")
        self._wake.set()

    async def kept_projects(self) -> bytes | None:
        """Returns the projects document that was in force last; None if none was kept.

        Raises:
            ApiError: If it can't be read.
        """
        found = await find(self._api, f"{self._path}/{self._name}")
        text = ((found or {}).get("data") or {}).get(PROJECTS_KEY)
        self._written = text
        return None if text is None else str(text).encode()

    async def run(self) -> None:
        """Writes what is taken until it is cancelled; what the cluster does not take now is tried again later."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def flush(self) -> bool:
        """Writes what is taken; returns whether all of it is written."""
        waiting, projects = self._changes, self._projects
        if not waiting and projects in (None, self._written):
            return True
        try:
            await self._write("".join(lines_of([one.change], one.at) for one in waiting), projects)
        except ApiError as error:
            self._problems.tell(f"ConfigMap {self._name}: the history can't be written: {error}")
            return False
        self._problems.clear()
        self._written = projects or self._written
        done = set(map(id, waiting))
        self._changes = [one for one in self._changes if id(one) not in done]
        for one in waiting:
            await self._tell(one)
        return True

    async def _tell(self, one: _Waiting) -> None:
        """Writes an Event; the log and the history have the change, also where that is refused."""
        if one.service is None:
            return
        path = f"/api/v1/namespaces/{one.service.namespace}/events"
        try:
            await self._api.request("POST", path, event_of(one.change, one.service, one.at, self._instance))
        except ApiError as error:
            self._problems.tell(f"Service {one.service.namespace}/{one.service.id}: no Event can be written: {error}")

    async def _write(self, lines: str, projects: str | None) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                return await self._try(lines, projects)
            except ApiError as error:
                if error.status != CONFLICT or attempt == TRIES:
                    raise

    async def _try(self, lines: str, projects: str | None) -> None:
        found = await find(self._api, f"{self._path}/{self._name}")
        old = str(((found or {}).get("data") or {}).get(HISTORY_KEY, ""))
        data = {HISTORY_KEY: trimmed(old + lines)} | ({} if projects is None else {PROJECTS_KEY: projects})
        if found is None:
            await self._api.request("POST", self._path, {"metadata": {"name": self._name}, "data": data})
            return
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        await self._api.request(
            "PATCH", f"{self._path}/{self._name}", {"metadata": version, "data": data}, content_type=MERGE
        )
