"""Watches the hints in a ConfigMap through the cluster's API; an edit takes effect within two seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from elastic_launcher.hints.document import is_flat
from elastic_launcher.hints.reference import Reference
from elastic_launcher.hints.source import HintRead
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes
from elastic_launcher.kube.follow import FORBIDDEN
from elastic_launcher.kube.login import Login, log_in

KEY = "hints.json"
"""The entry that holds the document; without it the entries themselves are one, in the flat form."""


def hint_of(found: Mapping[str, Any] | None) -> HintRead:
    """Returns what a ConfigMap holds; None is one that does not exist."""
    if found is None:
        return HintRead(None)
    identity = found["metadata"]["uid"]
    data = found.get("data") or {}
    if KEY in data:
        return HintRead(data[KEY], identity)
    if KEY in (found.get("binaryData") or {}):
        return HintRead(None, identity, f"its key {KEY} is under binaryData; it must be a text, under data")
    if not any(map(is_flat, data)):
        there = f", but {', '.join(sorted(data))}" if data else ""
        return HintRead(None, identity, f"it has no key {KEY}{there}")
    return HintRead(json.dumps(data), identity)


class ConfigMapSource:
    """Watches a ConfigMap, or polls it where watching is not permitted.

    Args:
        reference: Which; it need not be there.
        log_in: Finds the cluster; called once, when the watch begins.
    """

    def __init__(self, reference: Reference, log_in: Callable[[], Login] = log_in) -> None:
        self._reference = reference
        self._log_in = log_in

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        return str(self._reference)

    async def changes(self) -> AsyncIterator[HintRead]:
        """Yields what is there now, and again after each change; its identity is the object's uid.

        Raises:
            ConfigError: If no cluster is known.
        """
        login = await asyncio.to_thread(self._log_in)  # loads a library that takes its time
        namespace = self._reference.namespace or login.namespace
        collection = Collection(f"/api/v1/namespaces/{namespace}/configmaps", name=self._reference.name)
        told: HintRead | None = None
        async with Api(login) as api, aclosing(changes(api, collection)) as all_changes:
            async for change in all_changes:
                found = _read(change, self._reference.name)
                if found != told:
                    told = found
                    yield found


def _read(change: Snapshot | Change | Trouble, name: str) -> HintRead:
    match change:
        case Snapshot():
            return hint_of(next(iter(change.objects), None))
        case Change():
            return hint_of(None if change.deleted else change.object)
        case Trouble():
            return HintRead(None, error=_why(change.error, name))


def _why(error: ApiError, name: str) -> str:
    if error.status in FORBIDDEN:
        return f"it may not be read ({error}); grant get, list and watch on ConfigMap {name} to the launcher's account"
    return f"it can't be read: {error}"
