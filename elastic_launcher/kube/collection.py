"""A collection of the API, read and then watched for as long as somebody uses it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from elastic_launcher.kube.api import MOST_SHOWN, NOT_FOUND, Api, ApiError
from elastic_launcher.kube.follow import Act, Follow


@dataclass(frozen=True, slots=True)
class Collection:
    """The selection of objects.

    Attributes:
        path: Of the collection, for example ``/api/v1/namespaces/ml/configmaps``.
        name: The one object that is meant, or "".
        selector: Labels that they must have, or "".
        fields: A selector of fields, or "".
    """

    path: str
    name: str = ""
    selector: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query for them alone; a Role that names an object permits no more."""
        fields = [f"metadata.name={self.name}" if self.name else "", self.fields]
        asked = {"fieldSelector": ",".join(filter(None, fields)), "labelSelector": self.selector}
        return {key: value for key, value in asked.items() if value}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All objects of the collection, in no particular order."""

    objects: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Change:
    """One object that has changed: as it is now, or was last before it was deleted."""

    object: Mapping[str, Any]
    deleted: bool


@dataclass(frozen=True, slots=True)
class Trouble:
    """The collection can't be read at the moment, for this reason."""

    error: ApiError


async def changes(api: Api, collection: Collection) -> AsyncGenerator[Snapshot | Change | Trouble, None]:
    """Yields what is there, then each change, for ever.

    What can't be read now is yielded as trouble, and never raised; after it comes a whole snapshot, or a change.
    """
    follow = Follow()
    while True:
        await asyncio.sleep(follow.delay * random.uniform(0.5, 1.0))
        act = follow.act
        try:
            if act is Act.WATCH:
                began = time.monotonic()
                async with aclosing(api.watch(collection.path, str(follow.version), collection.query)) as watch:
                    async for event in watch:
                        follow = follow.saw(event["object"]["metadata"]["resourceVersion"])
                        if event["type"] != "BOOKMARK":
                            yield Change(event["object"], event["type"] == "DELETED")
                follow = follow.ended(time.monotonic() - began)
            else:
                found, version = await _read(api, collection, single=act is Act.POLL)
                follow = follow.done(version)
                yield found
        except ApiError as error:
            follow = follow.failed(error.status, error.retry_after)
            if follow.loud and act is not Act.WATCH:
                yield Trouble(error)


async def _read(api: Api, collection: Collection, *, single: bool) -> tuple[Snapshot, str]:
    """Reads all; a single object by its name where listing may not be permitted either."""
    if single and collection.name:
        try:
            return Snapshot([await api.request("GET", f"{collection.path}/{collection.name}")]), ""
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return Snapshot([]), ""
    match await api.request("GET", collection.path, query=collection.query):
        case {"metadata": {"resourceVersion": str(version)}, **found}:
            return Snapshot(found.get("items") or []), version
        case other:  # of a proxy in between, for example
            raise ApiError(0, "NoList", f"{collection.path}: no list came, but {str(other)[:MOST_SHOWN]!r}")
