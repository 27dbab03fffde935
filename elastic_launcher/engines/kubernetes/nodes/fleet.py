"""The nodes of a job in a cluster: creates and deletes their Jobs, and follows their state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from elastic_launcher.engines import NodeExit, NodeSpec
from elastic_launcher.engines.kubernetes.nodes.backoff import Machines
from elastic_launcher.engines.kubernetes.nodes.explanations import Explanations
from elastic_launcher.engines.kubernetes.nodes.pod_status import (
    Gone,
    Standing,
    Waiting,
    refused,
    refused_for_now,
    turned_away,
)
from elastic_launcher.engines.kubernetes.nodes.track import Track
from elastic_launcher.engines.kubernetes.objects.job import JobPlan, node_job, node_of, spec_of
from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from elastic_launcher.kube.api import BUSY, CONFLICT, LONG_PAUSES, NOT_FOUND, Api, ApiError, find, insist, items_of
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes
from elastic_launcher.options import ConfigError

KILL_SECONDS = 1
"""The least grace by which the machine itself ends a pod; 0 would only have the API forget it."""
FORCE_AFTER = 10.0
"""Seconds after which a machine that does not end a pod counts as lost, and the API forgets the pod."""
ASK_AGAIN_SECONDS = 5.0
"""Between tries to make a Job that was forbidden: one request, however many nodes wait."""
CROSSED = "Conflict"
"""A write of the server's own lost to another one, as where many Jobs are charged to one ResourceQuota at once."""


class Fleet:
    """The nodes of one job. All of it runs in one event loop, in which the API is open."""

    def __init__(self, api: Api, namespace: str, plan: JobPlan) -> None:
        self._api = api
        self._plan = plan
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._tracks: dict[int, Track] = {}
        self._explanations = Explanations(api, namespace, plan.names, self._tracks)
        self._exits: list[NodeExit] = []
        self._making: dict[int, bool] = {}  # whether a list without its Job came meanwhile
        self._perhaps_made: set[int] = set()
        self._looked_for: set[int] = set()
        self._ending: set[int] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._machines = Machines(time.monotonic)
        self._force_after = FORCE_AFTER
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Follows the cluster until it is cancelled."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._follow(self._jobs, self._take_jobs))
            self._group.create_task(self._follow(self._pods, self._take_pods))
            self._group.create_task(self._explanations.follow_events())
            self._group.create_task(self._explanations.follow_queues())
            self._group.create_task(self._ask_again())

    def standings(self) -> dict[int, Standing]:
        """Returns the state of each node that is not gone."""
        return {node: track.standing for node, track in self._tracks.items() if track.gone is None}

    def take_exits(self) -> list[NodeExit]:
        """Returns the nodes that are gone since the last call."""
        found, self._exits = self._exits, []
        return found

    async def find(self) -> list[NodeSpec]:
        """Returns the nodes that the cluster has of this job, by number, and that are not gone."""
        found = await self._read()
        tracks = (found[node] for node in sorted(found))
        return [track.spec for track in tracks if track is not None and not isinstance(track.standing, Gone)]

    async def used(self) -> list[NodeSpec]:
        """Returns all nodes whose Jobs or pods are still there, those that are gone or ending too."""
        found = [spec_of(one) for path in (self._jobs, self._pods) for one in (await self._list(path)).values()]
        return list({spec.node: spec for spec in found if spec is not None}.values())

    async def adopt(self, specs: Sequence[NodeSpec]) -> list[str]:
        """Takes nodes for its own that an earlier launcher has started, and deletes the Jobs of all others.

        Returns a line for each node that may have run, and whose Job can't be read any more.
        """
        found = await self._read()
        self._tracks |= {spec.node: found.get(spec.node) or Track(spec) for spec in specs}
        unknown = found.keys() - self._tracks.keys()
        for node in unknown:
            await self._delete_job(node)
        await self._settle()
        unreadable = [self._plan.names.node(node) for node in sorted(unknown) if found[node] is None]
        return [f"Job {name} does not say any more what node it was made for: it is deleted" for name in unreadable]

    async def start(self, spec: NodeSpec) -> None:
        """Makes a node's Job; where that is forbidden for now, such as by a quota, the node waits until it is not.

        Raises:
            ApiError: If it is refused for good, or the cluster can't be reached.
            ConfigError: If the template can't be a node's pod.
        """
        self._tracks[spec.node] = Track(spec)
        try:
            await self._ask_for(spec)
        except (ApiError, ConfigError):
            self._tracks.pop(spec.node, None)
            raise

    def notice(self, node: int) -> None:
        """Has a node's pod deleted, with all its grace."""
        self._run_errand(self._delete_job(node))

    def kill(self, node: int) -> None:
        """Has a node ended at once, and forgotten where its machine does not answer."""
        if node in self._tracks and node not in self._ending:
            self._ending.add(node)
            self._run_errand(self._end(node))

    async def end_all(self, within: float = 2 * FORCE_AFTER) -> None:
        """Ends all nodes, and waits until they are gone, ``within`` seconds at most.

        The API forgets those that are not after half of the time. What the cluster is still asked for of nodes that
        ended by themselves is waited for too: whoever leaves before leaves their Jobs behind.
        """
        self._force_after = within / 2
        nodes = list(self._tracks)
        for node in nodes:
            self.kill(node)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._tracks.keys().isdisjoint(nodes))
                while self._errands:
                    await asyncio.wait(self._errands)

    # what the cluster shows

    async def _follow(self, path: str, take: Callable[[Snapshot | Change], None]) -> None:
        collection = Collection(path, selector=self._plan.names.selector)
        async with contextlib.aclosing(changes(self._api, collection)) as found:
            async for change in found:
                if isinstance(change, Trouble):
                    continue  # no known change; agents report to the coordinator themselves
                take(change)
                await self._settle()

    def _take_jobs(self, change: Snapshot | Change) -> None:
        if isinstance(change, Snapshot):
            there = self._by_node(change.objects)
            for node, job in there.items():
                self._show_job(node, job)
            for node, track in self._tracks.items():
                if node in there or track.gone is not None or track.held is not None:
                    continue
                if node in self._making:
                    self._making[node] = True
                else:
                    self._run_errand(self._look_for(node))
        else:
            for node, job in self._by_node([change.object]).items():
                self._show_job(node, None if change.deleted else job)

    def _take_pods(self, change: Snapshot | Change) -> None:
        if isinstance(change, Snapshot):
            there = self._by_node(change.objects)
            known = {pod["metadata"]["uid"]: pod for pod in change.objects}
            for node, track in self._tracks.items():
                if track.pod is None and node in there:
                    self._tracks[node] = track.show_pod(there[node])
                elif track.pod is not None and (pod := known.get(track.pod["metadata"]["uid"])) is not None:
                    self._tracks[node] = track.show_pod(pod)
                elif track.pod is not None:
                    self._run_errand(self._lose_pod(node, track.pod))
        else:
            for node, pod in self._by_node([change.object]).items():
                if node in self._tracks and change.deleted:
                    self._run_errand(self._lose_pod(node, pod))
                elif node in self._tracks:
                    self._tracks[node] = self._tracks[node].show_pod(pod)

    def _show_job(self, node: int, job: Mapping[str, Any] | None) -> None:
        if node in self._tracks:
            self._tracks[node] = self._tracks[node].show_job(job)
        elif node in self._perhaps_made and job is not None:
            self._perhaps_made.discard(node)
            self._run_errand(self._delete_job(node))

    async def _look_for(self, node: int) -> None:
        """Asks for a Job that a list did not have: it may have been made while the list was."""
        job = await insist(lambda: find(self._api, f"{self._jobs}/{self._plan.names.node(node)}"))
        self._show_job(node, job)
        await self._settle()

    async def _lose_pod(self, node: int, pod: Mapping[str, Any]) -> None:
        """A pod is not there any more: what its Job shows by now says whether its queue has taken it back."""
        track = self._tracks.get(node)
        try:
            if track is not None and track.job is not None and track.gone is None:
                await self._look_for(node)
        finally:
            if node in self._tracks:
                self._tracks[node] = after = self._tracks[node].show_pod(pod, deleted=True)
                await self._settle()
                if after.pod is None and after.gone is None:  # the next may have been shown while this one was there
                    await self._look_for_pod(node)

    async def _look_for_pod(self, node: int) -> None:
        """Asks for the pod of a node that is gone if it has none."""
        query = {"labelSelector": f"{self._plan.names.selector},{NODE_LABEL}={node}"}
        try:
            pods = items_of(await insist(lambda: self._api.request("GET", self._pods, query=query)))
        finally:
            self._looked_for.discard(node)
        if node in self._tracks:
            track = self._tracks[node]
            newest = self._by_node(pods).get(node)
            self._tracks[node] = track.show_pod(newest) if newest is not None else track.miss_pod()
            await self._settle()

    async def _settle(self) -> None:
        """Reports nodes that are gone, each once, and deletes their Jobs."""
        for node, track in list(self._tracks.items()):
            if track.in_doubt and node not in self._looked_for:
                self._looked_for.add(node)
                self._run_errand(self._look_for_pod(node))
            elif track.put_back is not None:
                self._tracks[node] = track.tell_put_back()
                how, waits = track.put_back, self._tracks[node].standing
                again = waits.why if isinstance(waits, Waiting) else "its Job has its next pod"
                self._exits.append(NodeExit(node, how.exit_code, how.why, taken=True, again=again, pod=track.former))
            elif track.gone is not None:
                if track.pod is not None and turned_away(track.pod):
                    self._machines.keep_off(track.pod)
                    self._machines.rest(track.gone.why)
                del self._tracks[node]
                gone = track.gone
                self._exits.append(NodeExit(node, gone.exit_code, gone.why, gone.taken, gone.last_line))
                if track.job is not None:
                    self._run_errand(self._delete_job(node))
        async with self._changed:
            self._changed.notify_all()

    async def _read(self) -> dict[int, Track | None]:
        """Returns all nodes that the cluster has of this job; None for one whose Job can't be read any more."""
        pods = await self._list(self._pods)
        found: dict[int, Track | None] = {}
        for node, job in (await self._list(self._jobs)).items():
            spec = spec_of(job)
            track = Track(spec).show_job(job) if spec is not None else None
            found[node] = track.show_pod(pods[node]) if track is not None and node in pods else track
        return found

    async def _list(self, path: str) -> dict[int, Mapping[str, Any]]:
        query = {"labelSelector": self._plan.names.selector}
        found = await insist(lambda: self._api.request("GET", path, query=query), LONG_PAUSES)
        return self._by_node(items_of(found))

    def _by_node(self, found: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Returns what is found of each node; of several pods, the newest."""
        in_turn = sorted(found, key=lambda one: str(one["metadata"].get("creationTimestamp") or ""))
        nodes = ((node_of(self._plan.names, one), one) for one in in_turn)
        return {node: one for node, one in nodes if node is not None}

    # what the cluster is asked for

    async def _ask_for(self, spec: NodeSpec) -> None:
        """Has a node's Job made, unless that is forbidden for now, or a machine has just refused the pod of another."""
        if (resting := self._machines.resting) is not None:
            self._tracks[spec.node] = self._tracks[spec.node].hold(resting)
            return
        job = node_job(self._plan, spec, self._machines.avoided)

        async def make() -> Waiting | None:
            try:
                await self._api.request("POST", self._jobs, job, {"fieldValidation": "Strict"})
            except ApiError as error:
                if refused_for_now(error.status, str(error)):
                    return refused(str(error))
                if error.reason == CROSSED:
                    raise ApiError(BUSY, error.reason, str(error)) from error
                if error.status == CONFLICT and spec.node in self._perhaps_made:
                    return None  # by a try before, whose answer was lost
                if error.unsure:
                    self._perhaps_made.add(spec.node)  # it is deleted when it shows up and nobody wants it
                raise
            return None

        self._making[spec.node] = False
        try:
            held = await insist(make)
        finally:
            missed = self._making.pop(spec.node)
        if spec.node in self._tracks:
            self._tracks[spec.node] = self._tracks[spec.node].hold(held)
        if held is not None:
            return
        self._perhaps_made.discard(spec.node)
        if spec.node not in self._tracks:
            self._run_errand(self._delete_job(spec.node))  # it was ended meanwhile
        elif missed:
            self._run_errand(self._look_for(spec.node))

    async def _ask_again(self) -> None:
        """Asks for the Job that has waited longest; once that is made, for the next."""
        while True:
            await asyncio.sleep(ASK_AGAIN_SECONDS)
            for node, track in list(self._tracks.items()):
                if track.held is None or track.gone is not None:
                    continue
                try:
                    await self._ask_for(track.spec)
                except ApiError as error:
                    if not error.away and node in self._tracks:
                        self._tracks[node] = track.give_up(f"its Job could not be made: {error}")
                        await self._settle()
                if node in self._tracks and self._tracks[node].held is not None:
                    break

    async def _end(self, node: int) -> None:
        """Ends a node, however long the cluster can't be reached."""
        track = self._tracks.get(node)
        if track is not None and track.held is not None:
            self._tracks[node] = track.give_up("its Job was not made yet", taken=True)
            await self._settle()
        asked = False
        while node in self._tracks:
            if asked:
                self._machines.keep_off(self._tracks[node].pod)
            with contextlib.suppress(ApiError):  # before its Job, with which it goes: a grace that has begun stays
                asked = await self._delete_pod(self._tracks.get(node), 0 if asked else KILL_SECONDS)
            with contextlib.suppress(ApiError):
                await self._delete_job(node)
            with contextlib.suppress(TimeoutError):
                await self._wait(self._force_after, partial(self._came_on, node, asked))
        self._ending.discard(node)

    def _came_on(self, node: int, asked: bool) -> bool:
        """Whether a node is gone, or has a pod by now that was not ended yet."""
        track = self._tracks.get(node)
        return track is None or (track.pod is not None and not asked)

    async def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(until)

    async def _delete_job(self, node: int) -> None:
        await self._delete(f"{self._jobs}/{self._plan.names.node(node)}", {"propagationPolicy": "Background"})

    async def _delete_pod(self, track: Track | None, grace: int) -> bool:
        """Deletes a node's pod; returns whether there was one."""
        if track is None or track.pod is None:
            return False
        metadata = track.pod["metadata"]
        only = {"preconditions": {"uid": metadata["uid"]}}
        await self._delete(f"{self._pods}/{metadata['name']}", {"gracePeriodSeconds": grace, **only})
        return True

    async def _delete(self, path: str, options: dict[str, Any]) -> None:
        try:
            await insist(lambda: self._api.request("DELETE", path, options))
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _run_errand(self, errand: Coroutine[Any, Any, None]) -> None:
        """Runs a request that only the end waits for; the cluster later does itself what it refuses now."""

        async def do() -> None:
            with contextlib.suppress(ApiError):
                await errand

        task = self._group.create_task(do())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
