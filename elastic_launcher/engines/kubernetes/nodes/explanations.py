"""Why nodes wait: what the events of their pods and their Workloads say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Standing, Waiting, in_kueue, suspended
from elastic_launcher.engines.kubernetes.nodes.track import Track
from elastic_launcher.engines.kubernetes.nodes.workloads import UNREADABLE, next_asked, why_not_admitted
from elastic_launcher.engines.kubernetes.objects.names import Names
from elastic_launcher.kube.api import Api, ApiError, items_of

EXPLAIN_SECONDS = 5.0
"""Between looks at the events of nodes that wait; most are running by then."""
EXPLAIN_AGAIN_SECONDS = 60.0
"""The same after they could not be read: the right to may come, or be back."""
MOST_EXPLAINED = 4
"""Such requests at a time: the server reads all events of the namespace for each, and a message has few reasons."""
EXPLAINED_BY_EVENTS = (Cause.STARTING, Cause.QUOTA, Cause.REFUSED)
FORBIDDEN = 403


class Explanations:
    """Looks again and again for why nodes wait, and adds it to what is known of them."""

    def __init__(self, api: Api, namespace: str, names: Names, tracks: dict[int, Track]) -> None:
        self._api = api
        self._namespace = namespace
        self._events = f"/api/v1/namespaces/{namespace}/events"
        self._names = names
        self._tracks = tracks

    async def follow_events(self) -> None:
        """Looks for the events of nodes that wait; seldom where they may not be read, as in a stock KFP step.

        Nodes that wait alike, as for a pod, wait for the same: only the events of the first of them are read.
        """
        pause = EXPLAIN_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = EXPLAIN_SECONDS
            alike: dict[Standing, list[int]] = {}
            for node, track in self._tracks.items():
                now = track.standing
                if track.held is None and isinstance(now, Waiting) and now.cause in EXPLAINED_BY_EVENTS:
                    alike.setdefault(track.show_events(()).standing, []).append(node)
            for nodes in list(alike.values())[:MOST_EXPLAINED]:
                pod = self._tracks[nodes[0]].pod if nodes[0] in self._tracks else None
                name = pod["metadata"]["name"] if pod is not None else self._names.node(nodes[0])
                query = {"fieldSelector": f"involvedObject.name={name}"}
                try:
                    found = items_of(await self._api.request("GET", self._events, query=query))
                except ApiError as error:
                    if error.status == FORBIDDEN:
                        pause = EXPLAIN_AGAIN_SECONDS
                        break
                    continue
                events = sorted(found, key=_time_of)
                self._tracks |= {one: self._tracks[one].show_events(events) for one in nodes if one in self._tracks}

    async def follow_queues(self) -> None:
        """Looks for what Kueue says of the Jobs that it has not admitted; seldom where that may not be read."""
        pause, last = EXPLAIN_SECONDS, ""
        while True:
            await asyncio.sleep(pause)
            pause = EXPLAIN_SECONDS
            waiting = {
                track.job["metadata"]["uid"]: node
                for node, track in self._tracks.items()
                if track.job is not None and suspended(track.job) and in_kueue(track.job)
            }
            if not waiting:
                continue
            asked = next_asked(waiting, last)
            last = asked[-1]
            try:
                found = await why_not_admitted(self._api, self._namespace, asked)
            except ApiError:
                continue  # the next look may find it
            if UNREADABLE in found.values():
                pause = EXPLAIN_AGAIN_SECONDS
            for uid, why in found.items():
                if (node := waiting.get(uid)) in self._tracks:
                    self._tracks[node] = self._tracks[node].show_admission(why)


def _time_of(event: Mapping[str, Any]) -> str:
    made = (event.get("metadata") or {}).get("creationTimestamp")
    return str(event.get("lastTimestamp") or event.get("eventTime") or made)
