"""Reaches what a URL names, through fsspec, and says what is missing where it can't."""

from __future__ import annotations

from typing import Any

from elastic_launcher.checkpoint.manifest import CheckpointError


class StorageError(CheckpointError):
    """A URL that can't be used; the message says what to give or to install."""


def is_url(place: str) -> bool:
    """Returns whether a place is named by a URL, and not a path."""
    return "://" in place


def open_storage(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the path in it.

    Where the package that fsspec wants for a kind of store is not there, obstore takes its place; paths begin there.

    Raises:
        StorageError: If it can't be reached from here, whatever the network does.
    """
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise StorageError(f"{url} is lost with each process: give a folder, s3://, gs:// or the like")
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
