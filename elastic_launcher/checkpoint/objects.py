"""An object store, through obstore's blocking calls.

What obstore gives fsspec answers from threads of its own, which hold Python objects for a moment after the last answer
and abort a process that ends meanwhile. Blocking calls leave nothing behind.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore

RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
"""Of one request; a save that fails is tried again as a whole, when the next one is due."""


class ObjectStore:
    """The objects under one URL, with the calls of an fsspec file system that `remote` makes; paths are below the URL.

    The URL is as ``s3://bucket/folder``; credentials and the like come from the environment, under their usual names.

    Raises:
        obstore.exceptions.BaseError: If the URL or the environment names no store.
    """

    def __init__(self, url: str) -> None:
        self._store: Any = obstore.store.from_url(url, retry_config=RETRIES)

    def pipe_file(self, path: str, content: bytes) -> None:
        """Writes an object whole."""
        obstore.put(self._store, path, content)

    def put_file(self, local: str, path: str) -> None:
        """Writes a file of this machine, in parts if it is large."""
        obstore.put(self._store, path, Path(local))

    def cp_file(self, path: str, other: str) -> None:
        """Copies an object within the store."""
        obstore.copy(self._store, path, other)

    def cat_file(self, path: str) -> bytes:
        """Returns an object whole."""
        return bytes(obstore.get(self._store, path).bytes())

    def get_file(self, path: str, local: str) -> None:
        """Copies an object to a file of this machine, piece by piece."""
        pieces = obstore.get(self._store, path).stream()
        with open(local, "wb") as file:
            for piece in pieces:
                file.write(piece)

    def rm_file(self, path: str) -> None:
        """Removes an object."""
        obstore.delete(self._store, path)

    def rm(self, path: str, *, recursive: bool) -> None:
        """Removes an object; with ``recursive`` all that is in a folder and below, or an object of just that name."""
        obstore.delete(self._store, (self.find(path) if recursive else []) or [path])

    def find(self, folder: str) -> list[str]:
        """Returns the paths of all objects in a folder and below."""
        return [entry["path"] for entries in obstore.list(self._store, folder or None) for entry in entries]

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Does nothing: an object needs no folder."""

    def rmdir(self, path: str) -> None:
        """Does nothing: a folder is gone with its last object."""

    def invalidate_cache(self) -> None:
        """Does nothing: each call asks the store."""
