"""The hints document in a ConfigMap, as a command reads and edits it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

from elastic_launcher.hints.configmap import KEY, hint_of
from elastic_launcher.hints.edit import Change
from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.api import CONFLICT, MERGE, Api, ApiError, find
from elastic_launcher.kube.login import Login, log_in

TRIES = 10
"""An edit that loses to one that somebody else got done is tried again on what that left."""


class ConfigMapPlace:
    """A ConfigMap.

    Args:
        reference: Which; it need not be there.
        login: The cluster; None to find it.

    Raises:
        ConfigError: If no cluster is known.
    """

    def __init__(self, reference: Reference, login: Login | None = None) -> None:
        self._login = login or log_in()
        self._reference = replace(reference, namespace=reference.namespace or self._login.namespace)

    @property
    def name(self) -> str:
        """The name of the store in messages."""
        return str(self._reference)

    def read(self) -> str:
        """Returns the document.

        Raises:
            OSError: If there is none, or it can't be read.
        """
        with self._named_errors():
            return asyncio.run(self._read())

    def edit(self, change: Change) -> None:
        """Changes the document, or makes it, so that no edit of others is lost.

        Raises:
            OSError: If it can't be written.
        """
        with self._named_errors():
            asyncio.run(self._edit(change))

    async def _read(self) -> str:
        async with Api(self._login) as api:
            configmap = await find(api, f"{self._path}/{self._reference.name}")
        if configmap is None:
            raise FileNotFoundError(f"{self.name} is not there; `elastic-launcher hints set` makes one")
        found = hint_of(configmap)
        if found.text is None:
            raise OSError(f"{self.name}: {found.error}")
        return str(found.text)

    async def _edit(self, change: Change) -> None:
        async with Api(self._login) as api:
            for attempt in range(1, TRIES + 1):
                try:
                    return await self._try(api, change)
                except ApiError as error:
                    if error.status != CONFLICT or attempt == TRIES:
                        raise

    async def _try(self, api: Api, change: Change) -> None:
        """Edits the current document; it conflicts with the edit of another client."""
        path = self._path
        found = await find(api, f"{path}/{self._reference.name}")
        if found is None:
            await api.request("POST", path, {"metadata": {"name": self._reference.name}, "data": {KEY: change("")}})
            return
        old = hint_of(found).text
        changed = change(old or "")
        flat = old is not None and KEY not in found["data"]
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        body = {"metadata": version, "data": json.loads(changed) if flat else {KEY: changed}}
        await api.request("PATCH", f"{path}/{self._reference.name}", body, content_type=MERGE)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._reference.namespace}/configmaps"

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Names the ConfigMap that was refused."""
        try:
            yield
        except ApiError as error:
            raise OSError(f"{self.name}: {error}") from error
