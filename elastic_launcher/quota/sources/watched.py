"""What is known of a collection of the API, by a watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.collection import Change, Collection, Snapshot, Trouble, changes

T = TypeVar("T")
FORBIDDEN = 403


class Watched(Generic[T]):
    """What is known of a collection.

    Args:
        what: The name of it in messages.
        collection: Which.
        parse: Makes what is kept of an object, and of what was kept of it before; None is not kept.
        lock: Held while it changes.
        changed: Called after a change that matters.
        gist: Returns that of it by which a change is one that matters; all of it by default.
        overlay: That of `manifests/overlays` which grants its reading, for the message where that is forbidden.

    Attributes:
        objects: What is kept, by the objects' uids.
        read: Whether it was ever read.
        error: Why it can't be read; None if it can.
    """

    def __init__(
        self,
        what: str,
        collection: Collection,
        parse: Callable[[Mapping[str, Any], T | None], T | None],
        lock: threading.Lock,
        changed: Callable[[], None],
        gist: Callable[[T], object] = lambda kept: kept,
        overlay: str = "",
    ) -> None:
        self.what = what
        self.objects: dict[str, T] = {}
        self.read = False
        self.error: ApiError | None = None
        self._collection = collection
        self._parse = parse
        self._gist = gist
        self._lock = lock
        self._changed = changed
        self._overlay = overlay

    async def follow(self, api: Api) -> None:
        """Follows it until it is cancelled."""
        async with aclosing(changes(api, self._collection)) as found:
            async for change in found:
                self._tell(change)

    def _tell(self, change: Snapshot | Change | Trouble) -> None:
        """Takes a change, and tells of it if it matters."""
        with self._lock:
            matters = self._take(change)
        if matters:
            self._changed()

    def _take(self, change: Snapshot | Change | Trouble) -> bool:
        """Takes a change; returns whether it matters."""
        if isinstance(change, Trouble):
            news = self.error is None
            self.error = self.error or self._advised(change.error)  # the first one, so that it is said once
            return news
        news = not self.read or self.error is not None
        self.read, self.error = True, None
        if isinstance(change, Snapshot):
            before, self.objects = self.objects, {}
            for one in change.objects:
                self._put(one, before.get(one["metadata"]["uid"]))
            return news or self._gists(before) != self._gists(self.objects)
        uid = change.object["metadata"]["uid"]
        old = self.objects.pop(uid, None)
        if not change.deleted:
            self._put(change.object, old)
        new = self.objects.get(uid)
        return news or (old and self._gist(old)) != (new and self._gist(new))

    def _advised(self, error: ApiError) -> ApiError:
        if error.status != FORBIDDEN or not self._overlay:
            return error
        return ApiError(error.status, error.reason, f"{error}; manifests/overlays/{self._overlay} grants that")

    def _put(self, one: Mapping[str, Any], before: T | None) -> None:
        kept = self._parse(one, before)
        if kept is not None:
            self.objects[one["metadata"]["uid"]] = kept

    def _gists(self, objects: Mapping[str, T]) -> dict[str, object]:
        return {uid: self._gist(one) for uid, one in objects.items()}


class Granted(Watched[T]):
    """One that does not stop the controller where it may not be read.

    Attributes:
        forbidden: Why it may not; None if it may.
    """

    forbidden: ApiError | None = None

    def remarks(self, without: str) -> list[str]:
        """Returns that it may not be read, and what is so ``without`` it, in one line; nothing if it may."""
        return [] if self.forbidden is None else [f"{self.what} can't be read ({self.forbidden}): {without}"]

    def _take(self, change: Snapshot | Change | Trouble) -> bool:
        if not isinstance(change, Trouble) or change.error.status != FORBIDDEN:
            self.forbidden = None
            return super()._take(change)
        news = self.forbidden is None
        super()._take(change)
        self.read, self.forbidden, self.error = True, self.error, None
        self.objects = {}
        return news
