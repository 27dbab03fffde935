"""The leadership of a job: one launcher at a time has it, and a former leader learns that it has lost it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from elastic_launcher.engines.kubernetes.objects.names import Names, Owner
from elastic_launcher.engines.kubernetes.objects.service import (
    Record,
    coordinator_labels,
    new_service,
    read_record,
    same_service,
    take_over,
    tell_status,
)
from elastic_launcher.kube.api import CONFLICT, MERGE, Api, ApiError, find
from elastic_launcher.kube.collection import Change, Collection, Snapshot, changes

TRIES = 10
"""Writes that lose to one of somebody else, such as a user's `stop`, are done again on what that left."""


Answer = TypeVar("Answer")


class LeadershipLost(Exception):
    """Another coordinator governs the job now, or the job was given up: this one must touch nothing any more."""


class ServiceDeleted(LeadershipLost):
    """The Service was deleted: alone, or with what the job belongs to."""


class Leadership:
    """The Service of a job, as its coordinator holds it.

    Args:
        api: The cluster, open for as long as this is used.
        held: The Service's record when this process became the leader; None before that.

    Attributes:
        record: What the Service said last.
    """

    record: Record

    def __init__(self, api: Api, namespace: str, names: Names, held: Record | None = None) -> None:
        self._api = api
        self._names = names
        self._services = f"/api/v1/namespaces/{namespace}/services"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._path = f"{self._services}/{names.service}"
        self._term = 0
        if held is not None:
            self.record, self._term = held, held.term

    async def take(self, owner: Owner, ports: Mapping[str, int], pod: str) -> Record:
        """Begins a term, and has the Service (made for ``owner`` if need be) lead to this pod's ports.

        Raises:
            ApiError: If the cluster refuses it, or can't be reached.
        """
        return await _again(lambda: self._take(owner, ports, pod))

    async def publish(self, status: Mapping[str, Any]) -> None:
        """Writes the job's status.

        Raises:
            LeadershipLost: If another coordinator has taken over.
            ApiError: If the cluster refuses it, or can't be reached.
        """
        await _again(lambda: self._tell(status))

    async def follow(self) -> AsyncGenerator[Record, None]:
        """Yields what the Service says, now and after each change.

        Raises:
            LeadershipLost: If another coordinator has taken over.
            ServiceDeleted: If it was deleted.
        """
        collection = Collection(self._services, name=self._names.service)
        async with contextlib.aclosing(changes(self._api, collection)) as found:
            async for change in found:
                match change:
                    case Snapshot(objects=[]) | Change(deleted=True):
                        raise ServiceDeleted(f"Service {self._names.service} was deleted")
                    case Snapshot(objects=[service]) | Change(object=service):
                        self._check(read_record(service))
                        yield self.record

    async def restore(self, owner: Owner, ports: Mapping[str, int]) -> None:
        """Makes the Service again that was deleted, under this term and at its address, if that is still free.

        Raises:
            LeadershipLost: If another coordinator has made one.
            ApiError: If the cluster refuses it, or can't be reached.
        """
        try:
            made = await self._api.request("POST", self._services, same_service(self._names, owner, ports, self.record))
        except ApiError as error:
            # of a Service that is there the address is refused before the name, with another status
            if error.status != CONFLICT and (error.away or await self._found() is None):
                raise
            raise LeadershipLost(f"another coordinator has recreated Service {self._names.service}") from error
        self.record = read_record(made)

    async def _take(self, owner: Owner, ports: Mapping[str, int], pod: str) -> Record:
        found = read_record(await self._find(owner, ports))
        labels = coordinator_labels(self._names, found.term + 1)
        # first: the Service must not lead to nowhere
        await self._api.request("PATCH", f"{self._pods}/{pod}", {"metadata": {"labels": labels}}, content_type=MERGE)
        await self._patch(take_over(self._names, found))
        self._term = self.record.term
        return self.record

    async def _find(self, owner: Owner, ports: Mapping[str, int]) -> Mapping[str, Any]:
        found = await self._found()
        return found or await self._api.request("POST", self._services, new_service(self._names, owner, ports))

    async def _found(self) -> Mapping[str, Any] | None:
        return await find(self._api, self._path)

    async def _tell(self, status: Mapping[str, Any]) -> None:
        try:
            await self._patch(tell_status(self.record, status))
        except ApiError as error:
            if error.status == CONFLICT:
                self._check(read_record(await self._api.request("GET", self._path)))
            raise

    async def _patch(self, change: Mapping[str, Any]) -> None:
        self.record = read_record(await self._api.request("PATCH", self._path, change, content_type=MERGE))

    def _check(self, found: Record) -> None:
        if found.term != self._term:
            raise LeadershipLost(
                f"another coordinator governs the job: term {found.term}, and this one's is {self._term}"
            )
        self.record = found


async def _again(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Returns the answer of a request that is repeated after a conflict."""
    for _ in range(TRIES - 1):
        try:
            return await call()
        except ApiError as error:
            if error.status != CONFLICT:
                raise
    return await call()
