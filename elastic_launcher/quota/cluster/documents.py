"""Reads the projects document of a cluster, and keeps a controller that does not lead from writing the hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from elastic_launcher.hints.edit import Change as Edit
from elastic_launcher.hints.reference import Reference
from elastic_launcher.hints.stores import HintPlace
from elastic_launcher.kube.api import Api
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes
from elastic_launcher.quota.cluster.record import PROJECTS_KEY

LOOK_SECONDS = 1.0
"""Between looks at a file: a mounted ConfigMap changes seldom, and no message comes of it."""


class ProjectsConfigMap:
    """The projects document in a ConfigMap, which is watched.

    Args:
        reference: Which.
        changed: Called after each change.
    """

    def __init__(self, reference: Reference, changed: Callable[[], None]) -> None:
        self._reference = reference
        self._changed = changed
        self._found: bytes | str = "it was not read yet"

    def __str__(self) -> str:
        return f"{self._reference}, key {PROJECTS_KEY}"

    def read_bytes(self) -> bytes:
        """Returns the document as it was seen last.

        Raises:
            OSError: If there is none.
        """
        if isinstance(self._found, str):
            raise OSError(self._found)
        return self._found

    async def follow(self, api: Api) -> None:
        """Follows it until it is cancelled."""
        path = f"/api/v1/namespaces/{self._reference.namespace}/configmaps"
        async with aclosing(changes(api, Collection(path, name=self._reference.name))) as found:
            async for change in found:
                now = self._read(change)
                if now != self._found:
                    self._found = now
                    self._changed()

    def _read(self, change: Snapshot | Change | Trouble) -> bytes | str:
        match change:
            case Trouble(error):
                return f"it can't be read: {error}"
            case Snapshot([]) | Change(_, True):
                return "it is not there"
            case Snapshot([found, *_]) | Change(found):
                text = (found.get("data") or {}).get(PROJECTS_KEY)
                return "it has no such key" if text is None else str(text).encode()
        raise AssertionError(change)


class ProjectsPath:
    """The projects document in a file.

    Args:
        path: The file.
        changed: Called after each change.
    """

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._path = path
        self._changed = changed

    def __str__(self) -> str:
        return str(self._path)

    def read_bytes(self) -> bytes:
        """Returns the document.

        Raises:
            OSError: If it can't be read.
        """
        return self._path.read_bytes()

    async def follow(self, _: Api) -> None:
        """Looks for changes until it is cancelled."""
        last = None
        while True:
            try:
                now = self._path.read_bytes()
            except OSError:
                now = None
            if now != last:
                last = now
                self._changed()
            await asyncio.sleep(LOOK_SECONDS)


class NotLeading(OSError):
    """Another controller leads: this one must not write."""


class LedPlace:
    """The place of the hints, which is written by a leader alone.

    A write is decided from what was read just before, and refused if somebody has written since. So a former leader,
    which may have been stopped for a while in the middle of a round, writes nothing either.

    Args:
        place: The place.
        leads: Returns whether this process leads now.
    """

    def __init__(self, place: HintPlace, leads: Callable[[], bool]) -> None:
        self._place = place
        self._leads = leads

    @property
    def name(self) -> str:
        """The name of the store in messages."""
        return self._place.name

    def read(self) -> str | bytes:
        """Returns the document.

        Raises:
            OSError: If there is none, or it can't be read.
        """
        return self._place.read()

    def edit(self, change: Edit) -> None:
        """Changes the document, or makes it.

        Raises:
            NotLeading: If this process does not lead any more.
            OSError: If it can't be written.
        """

        def made(text: str | bytes) -> str:
            after = change(text)
            if not self._leads():
                raise NotLeading("another controller leads")
            return after

        self._place.edit(made)
