"""Opens a URL through fsspec, and names the missing package where it can't."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from elastic_launcher.checkpoint.manifest import CheckpointError
from elastic_launcher.config import why_no_store


class StorageError(CheckpointError):
    """A URL that can't be used; the message says what to give or to install."""


def is_url(place: str) -> bool:
    """Returns whether a place is named by a URL, and not a path."""
    return "://" in place


def open_storage(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the path in it.

    Where the package that fsspec wants for a kind of store is not there, obstore takes its place; paths begin there.

    Raises:
        StorageError: If it can't be reached from here with any network.
    """
    if why := why_no_store(url):
        raise StorageError(f"{url} {why}: give a folder, or a URL such as s3://bucket/folder")
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError as error:
        raise StorageError(f"{url} needs fsspec: pip install 'elastic-launcher[storage]'") from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise StorageError(f"{scheme}:// is not known to fsspec: give a folder, s3://, gs:// or the like") from error
    except ImportError as error:
        try:
            from obstore.fsspec import SUPPORTED_PROTOCOLS

            from elastic_launcher.checkpoint.objects import ObjectStore
        except ImportError:
            raise StorageError(f"{url}: {error}, or pip install 'elastic-launcher[storage]'") from error
        if scheme not in SUPPORTED_PROTOCOLS:
            raise StorageError(f"{url}: {error}") from error
        return ObjectStore(url), ""
    try:
        storage, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise StorageError(f"{url}: {error}") from error
    return storage, str(root).rstrip("/")


class RemoteFolder:
    """The files under a URL such as ``s3://bucket/folder``, opened at the first use.

    Attributes:
        place: The URL, as the user knows it.
        root: The path in the storage; "" until that is open.
    """

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self.root = ""
        self._storage: Any = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Gives the storage to a block, and turns its errors, which each kind has of its own, into OSError."""
        try:
            if self._storage is None:
                self._storage, self.root = open_storage(self.place)
            yield self._storage
        except (CheckpointError, FileNotFoundError):
            raise
        except Exception as error:
            raise OSError(f"{self.place}: {type(error).__name__}: {str(error)[:300]}") from error
