"""The controller's loop in a cluster: rounds while it leads, on each change, and at least every 30 s."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.engines.kubernetes.access.reviews import lacks
from elastic_launcher.hints.configmap_store import ConfigMapPlace
from elastic_launcher.hints.reference import Reference
from elastic_launcher.host.prometheus import serving
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Collection, changes
from elastic_launcher.kube.lease import Lease
from elastic_launcher.kube.login import Login
from elastic_launcher.quota.cluster.documents import LedPlace, ProjectsConfigMap, ProjectsPath
from elastic_launcher.quota.cluster.record import Recorder
from elastic_launcher.quota.cluster.rights import lease_of, needs_of, told
from elastic_launcher.quota.controller import Controller, ProjectsFile
from elastic_launcher.quota.metrics.exposition import QuotaMetrics
from elastic_launcher.quota.problems import Problems
from elastic_launcher.quota.projects import QuotaError
from elastic_launcher.quota.rounds.round import Change
from elastic_launcher.quota.serve import DEBOUNCE_SECONDS, ROUND_SECONDS
from elastic_launcher.quota.sources.cluster import ClusterSource

RETRY_SECONDS = 5.0
"""Between rounds that fail."""
LAST_SECONDS = 5.0
"""For recording the last changes at the end."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a controller serves.

    Attributes:
        hints: The ConfigMap that it writes, with its namespace.
        projects: The ConfigMap with the projects document, with its namespace, or a file.
        namespaces: Those whose jobs count; none for all.
        metrics_port: Where it answers Prometheus, or None.
    """

    hints: Reference
    projects: Reference | Path
    namespaces: tuple[str, ...] = ()
    metrics_port: int | None = None


async def serve(login: Login, served: Served, say: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serves until it is stopped; then it gives its Lease back.

    Args:
        login: The cluster.
        served: What it serves.
        say: Takes a line for the log.
        stop: Set to end it.

    Raises:
        ConfigError: If the port for Prometheus is taken.
    """
    async with Api(login) as api:
        loop = _Loop(api, served, ConfigMapPlace(served.hints, login), say, stop)
        port = served.metrics_port
        with contextlib.nullcontext() if port is None else serving(port, loop.metrics):
            await loop.run()


class _Loop:
    def __init__(
        self, api: Api, served: Served, place: ConfigMapPlace, say: Callable[[str], None], stop: asyncio.Event
    ) -> None:
        self._api = api
        self._served = served
        self._say = say
        self._stop = stop
        self._changed = asyncio.Event()
        self._problems = Problems(say)
        identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
        self._lease = Lease(api, served.hints.namespace, lease_of(served.hints), identity)
        self.metrics = QuotaMetrics(lambda: self._lease.leads)
        self._source = ClusterSource(served.namespaces, say, time.time, self._changed.set)
        self._recorder = Recorder(api, served.hints, self._source.service, say, socket.gethostname())
        self._place = LedPlace(place, lambda: self._lease.leads)
        self._document: ProjectsConfigMap | ProjectsPath = (
            ProjectsConfigMap(served.projects, self._changed.set)
            if isinstance(served.projects, Reference)
            else ProjectsPath(served.projects, self._changed.set)
        )
        self._controller: Controller | None = None

    async def run(self) -> None:
        await self._check_rights()
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._source.run(self._api)),
                group.create_task(self._document.follow(self._api)),
                group.create_task(self._follow_hints()),
                group.create_task(self._recorder.run()),
                group.create_task(self._lease.keep(self._tell_leader)),
            ]
            await self._rounds()
            for task in background:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._recorder.flush()
        await self._lease.release()
        self._say("stopped; another controller may lead")

    async def _check_rights(self) -> None:
        projects = self._served.projects if isinstance(self._served.projects, Reference) else None
        try:
            missing = await lacks(self._api, needs_of(self._served.hints, projects, self._served.namespaces))
        except ApiError as error:
            self._say(f"its rights can't be checked: {error}")
            return
        for line in told(missing):
            self._say(line)

    def _tell_leader(self) -> None:
        if self._lease.leads:
            self._say(f"leads, and writes {self._served.hints}")
        else:
            self._controller = None  # whoever leads meanwhile may have another projects document in force
            self._say(f"waits: Lease {lease_of(self._served.hints)} is held by {self._lease.holder or 'nobody'}")
        self.metrics.restart()
        self._changed.set()

    async def _follow_hints(self) -> None:
        """Has a round follow each edit of the hints: an entry that was written by hand counts at once."""
        path = f"/api/v1/namespaces/{self._served.hints.namespace}/configmaps"
        async with contextlib.aclosing(changes(self._api, Collection(path, name=self._served.hints.name))) as found:
            async for _ in found:
                self._changed.set()

    async def _rounds(self) -> None:
        while not self._stop.is_set():
            self._changed.clear()
            began = time.monotonic()
            done = not self._lease.leads or await self._round()
            await self._wait(self._changed, ROUND_SECONDS if done else RETRY_SECONDS)
            await self._wait(self._stop, began + DEBOUNCE_SECONDS - time.monotonic())

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Waits for an event, or for the end."""
        waits = [asyncio.create_task(one.wait()) for one in {event, self._stop}]
        try:
            await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _round(self) -> bool:
        """Makes a round; returns whether it was made."""
        try:
            self._controller = controller = self._controller or await self._made()
            decision = await asyncio.to_thread(controller.round)
        except OSError as error:
            self._problems.tell(f"no round: {error}")
            return False
        self._problems.clear()
        self._recorder.keep_projects(controller.projects.in_force)
        return decision is not None

    async def _made(self) -> Controller:
        """Makes the controller, with the projects document as it is, or as the last leader had it.

        Raises:
            OSError: If neither can be used.
        """
        kept = await self._recorder.kept_projects()
        loop = asyncio.get_running_loop()

        def record(made: tuple[Change, ...], now: float) -> None:
            loop.call_soon_threadsafe(self._recorder.take, made, now)

        for document in (kept, None):  # what another version has kept may be of no use
            try:
                projects = ProjectsFile(self._document, self._say, document)
            except (OSError, QuotaError) as error:
                problem = error
            else:
                measure = self.metrics.take
                return Controller(projects, self._source, self._place, record, self._say, time.time, measure)
        raise OSError(f"{self._document}: {problem}") from problem
