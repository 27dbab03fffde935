"""A hints document in a ConfigMap, as a command reads and edits it."""

from __future__ import annotations

import asyncio
import json

from elastic_launcher.cli.hint_places import Change
from elastic_launcher.hints.configmap import KEY, hint_of
from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.api import MERGE, Api, ApiError
from elastic_launcher.kube.login import log_in

TRIES = 10
"""An edit that loses to one that somebody else got done is tried again on what that left."""
NOT_FOUND, CONFLICT = 404, 409


class ConfigMapPlace:
    """A ConfigMap.

    Args:
        reference: Which; it need not be there.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return str(self._reference)

    def read(self) -> str:
        """Returns the document.

        Raises:
            OSError: If there is none, or it can't be read.
        """
        return asyncio.run(self._read())

    def edit(self, change: Change) -> None:
        """Changes the document, or makes it, so that no edit of others is lost.

        Raises:
            OSError: If it can't be written.
        """
        asyncio.run(self._edit(change))

    async def _read(self) -> str:
        async with Api(log_in()) as api:
            found = hint_of(await api.request("GET", f"{self._path(api)}/{self._reference.name}"))
        if found.text is None:
            raise OSError(f"{self.name}: {found.error}")
        return str(found.text)

    async def _edit(self, change: Change) -> None:
        async with Api(log_in()) as api:
            for attempt in range(1, TRIES + 1):
                try:
                    return await self._try(api, change)
                except ApiError as error:
                    if error.status != CONFLICT or attempt == TRIES:
                        raise

    async def _try(self, api: Api, change: Change) -> None:
        """Edits what is there now; refused with a conflict where somebody else was faster."""
        path = self._path(api)
        try:
            found = await api.request("GET", f"{path}/{self._reference.name}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            await api.request("POST", path, {"metadata": {"name": self._reference.name}, "data": {KEY: change("")}})
            return
        changed = change(hint_of(found).text or "")
        flat = bool(found.get("data")) and KEY not in found["data"]
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        body = {"metadata": version, "data": json.loads(changed) if flat else {KEY: changed}}
        await api.request("PATCH", f"{path}/{self._reference.name}", body, content_type=MERGE)

    def _path(self, api: Api) -> str:
        return f"/api/v1/namespaces/{self._reference.namespace or api.login.namespace}/configmaps"
