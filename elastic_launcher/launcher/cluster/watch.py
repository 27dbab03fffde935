"""Reports to the coordinator what a cluster does to the job and its launcher (see `platform.Platform`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping

from elastic_launcher.coordinator.model.observations import NodeNoticed, NodeStands, StopAsked
from elastic_launcher.coordinator.runtime.platform import JobControl
from elastic_launcher.engines.kubernetes.access.reviews import lacks
from elastic_launcher.engines.kubernetes.access.rights import MACHINES_OF_ALL, Told
from elastic_launcher.engines.kubernetes.engine import KubernetesEngine
from elastic_launcher.engines.kubernetes.leadership.bootstrap import PORTS, JobClaim
from elastic_launcher.engines.kubernetes.leadership.leadership import Leadership, LeadershipLost, ServiceDeleted
from elastic_launcher.engines.kubernetes.leadership.owner_state import Order, Verdict
from elastic_launcher.engines.kubernetes.leadership.owner_watch import OwnerWatch
from elastic_launcher.engines.kubernetes.nodes.pending import pending_line
from elastic_launcher.engines.kubernetes.nodes.pod_status import HAS_PLACE, Cause, Leaving, Running, Standing, Waiting
from elastic_launcher.engines.kubernetes.nodes.taints import notice_of
from elastic_launcher.engines.kubernetes.objects.service import STOP
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, changes
from elastic_launcher.kube.login import Login
from elastic_launcher.launcher.cluster.status_writer import ToldStatus
from elastic_launcher.workdir import Layout

LOOK_SECONDS = 0.25  # between looks at the state of nodes: the engine follows them itself
PENDING_SECONDS = 5.0  # that the reasons must have been the same before they are reported: most nodes start within
OWNER_SECONDS = 2.0  # after the Service has gone: what it belonged to may have gone, which has the job saved and ended
REVIEW_SECONDS = 25.0  # between looks at what rights there are: two of them are within the minute that docs promise
ASK_AGAIN_SECONDS = 60.0  # between questions for a right that most launchers never get
STATUS_SECONDS = 5.0  # between writes of the status
LAST_SECONDS = 5.0  # for the last one


class ClusterWatch:
    """Follows the job's Service, the launcher's own pod and its owner, and the nodes."""

    def __init__(self, login: Login, claim: JobClaim, engine: KubernetesEngine, layout: Layout) -> None:
        self._login = login
        self._context = claim.context
        self._record = claim.record
        self._engine = engine
        self._status = ToldStatus(layout, claim.record.status)
        self._owner_watch = OwnerWatch(claim.context.pod)
        self._known: dict[int, Standing] = {}
        self._placed: set[str] = set()
        self._going: dict[str, str] = {}
        self._ends = False  # the job may not know it yet, while it is taken over

    async def run(self, job: JobControl) -> None:
        """Reports what happens until it is cancelled."""
        async with Api(self._login) as api:
            leadership = Leadership(api, self._context.namespace, self._context.names, self._record)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._owner_watch.run(api, lambda verdict: self._end(job, verdict)))
                group.create_task(self._keep(job, leadership))
                group.create_task(self._publish_status(job, leadership))
                group.create_task(self._look_after(job))
                group.create_task(self._watch_machines(api))
                group.create_task(self._review_rights(job, api))

    async def publish_last(self) -> None:
        """Writes the job's status when its launcher ends."""
        async with Api(self._login) as api:
            leadership = Leadership(api, self._context.namespace, self._context.names, self._record)
            with contextlib.suppress(ApiError, LeadershipLost, TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await leadership.publish(await asyncio.to_thread(self._status.now))

    async def signalled(self, job: JobControl) -> None:
        """SIGTERM has come."""
        verdict = await self._owner_watch.signalled()
        if verdict.order is Order.HAND_OVER:
            job.leave(f"{verdict.why}: the job goes on, and another launcher takes it over", self._engine.leave)
        else:
            self._end(job, verdict)  # it may come any number of times: the job is saved all the same

    def _end(self, job: JobControl, verdict: Verdict) -> None:
        """Has the job saved and ended while this launcher still may."""
        self._ends = True
        _stop(job, verdict.why, self._owner_watch.grace)

    async def _keep(self, job: JobControl, leadership: Leadership) -> None:
        try:
            while True:
                try:
                    await self._heed(job, leadership)
                except ServiceDeleted as abolished:
                    await asyncio.sleep(OWNER_SECONDS)
                    if job.state.stopping is not None or job.state.finished or self._ends:
                        return
                    await self._restore(job, leadership, abolished)
        except LeadershipLost as deposed:
            self._resign(job, deposed)

    async def _heed(self, job: JobControl, leadership: Leadership) -> None:
        async with contextlib.aclosing(leadership.follow()) as records:
            async for record in records:
                if record.stop:
                    _stop(job, f"annotation {STOP} of Service {self._context.names.service} says {record.stop!r}")

    async def _restore(self, job: JobControl, leadership: Leadership, abolished: ServiceDeleted) -> None:
        """Makes the Service again, which is all that was deleted: the nodes' way to this launcher."""
        try:
            await leadership.restore(self._context.owner, PORTS)
        except ApiError as error:
            if error.away:
                return  # it is missed again, and made then
            raise LeadershipLost(f"{abolished}, and can't be made again ({error})") from error
        job.note("warning", message=f"{abolished}: it was made again at the same address, {leadership.record.address}")

    def _resign(self, job: JobControl, deposed: LeadershipLost) -> None:
        job.leave(f"{deposed}: this launcher leaves the job as it is", self._engine.leave)

    async def _publish_status(self, job: JobControl, leadership: Leadership) -> None:
        while True:
            status = await asyncio.to_thread(self._status.now)
            try:
                await leadership.publish(status)
            except LeadershipLost as deposed:  # the watch may see it later
                self._resign(job, deposed)
                return
            except ApiError:
                pass  # the next one says it
            await asyncio.sleep(STATUS_SECONDS)

    async def _look_after(self, job: JobControl) -> None:
        pending = PendingLine(asyncio.get_running_loop().time)
        while True:
            found = await asyncio.to_thread(self._engine.standings)
            standings = {node: self._forewarned(standing) for node, standing in found.items()}
            for node, standing in standings.items():
                if node in job.state.nodes and standing != self._known.get(node):
                    self._known[node] = standing
                    _tell(job, node, standing)
                    if isinstance(standing, Running) and standing.pod not in self._placed:
                        self._placed.add(standing.pod)
                        job.note("node_placed", node=node, pod=standing.pod, machine=standing.machine)
            line = pending.take(standings, job.state.generation > 0)
            if line:
                waiting = {node: one.cause for node, one in sorted(standings.items()) if isinstance(one, Waiting)}
                queued = [node for node, cause in waiting.items() if cause is Cause.ADMISSION]
                job.note("warning", message=line, pending=[*waiting], **({"queued": queued} if queued else {}))
            await asyncio.sleep(LOOK_SECONDS)

    async def _review_rights(self, job: JobControl, api: Api) -> None:
        """Reports rights that are revoked while the job runs, or granted again; their users retry."""
        known = Told(self._context.lacking)
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            with contextlib.suppress(ApiError):
                known, said = known.look(self._context.account, await lacks(api, self._context.needs))
                for message in said:
                    job.note("warning", message=message)

    async def _watch_machines(self, api: Api) -> None:
        """Follows the machines' taints, as soon as that is granted."""
        while not await _may_watch_machines(api):
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        async with contextlib.aclosing(changes(api, Collection("/api/v1/nodes"))) as found:
            async for change in found:
                match change:
                    case Snapshot(objects=machines):
                        self._going = {one["metadata"]["name"]: notice_of(one) for one in machines}
                    case Change(object=machine, deleted=deleted):
                        self._going[machine["metadata"]["name"]] = "" if deleted else notice_of(machine)

    def _forewarned(self, standing: Standing) -> Standing:
        """Returns the state of a node, with regard to its machine's taints."""
        why = self._going.get(standing.machine, "") if isinstance(standing, Running) else ""
        return Leaving(why, None) if why else standing


class PendingLine:
    """Reports why nodes wait, once for each reason that lasts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line = ""
        self._since = 0.0
        self._told = ""

    def take(self, standings: Mapping[int, Standing], trains: bool) -> str:
        """Returns what is to be said of the nodes now; mostly nothing."""
        waiting = [one for one in standings.values() if isinstance(one, Waiting)]
        line = pending_line(waiting, sum(isinstance(one, Running) for one in standings.values()), trains)
        if line != self._line:
            self._line, self._since = line, self._clock()
        if line == self._told or (line and self._clock() - self._since < PENDING_SECONDS):
            return ""
        self._told = line
        return line


async def _may_watch_machines(api: Api) -> bool:
    try:
        return not await lacks(api, [MACHINES_OF_ALL])
    except ApiError:
        return False


def _tell(job: JobControl, node: int, standing: Standing) -> None:
    match standing:
        case Waiting():
            queued = standing.cause is Cause.ADMISSION
            unplaced = standing.cause not in HAS_PLACE
            job.observe(lambda now: NodeStands(now, node, standing.why, queued, unplaced))
        case Running():
            job.observe(lambda now: NodeStands(now, node, ""))
        case Leaving():
            within = math.inf if standing.seconds is None else standing.seconds
            job.observe(lambda now: NodeNoticed(now, node, standing.why, within, standing.again, standing.pod))


def _stop(job: JobControl, why: str, within: float = math.inf) -> None:
    job.observe(lambda now: StopAsked(now, f"stopped: {why}", within))
