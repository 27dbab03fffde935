"""Decides whether an error of a disk or a store is likely to pass soon."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import chain, repeat

from elastic_launcher.options import ConfigError

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
"""Before the next look at what can't be read or written; the last one again and again."""
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_LASTING |= {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_LASTING_OF_STORES = {
    "FileNotFoundError",
    "NotFoundError",
    "PermissionError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "NoCredentialsError",
}
"""Names of the errors by which the libraries of stores say so."""


def pauses() -> Iterator[float]:
    """Returns the seconds to wait before each next look, without an end."""
    return chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))


class StoreAway(ConfigError):
    """A volume or a store can't be read or written now; what was asked for is right, as far as that is known."""


def unavailable(message: str, error: OSError) -> ConfigError:
    """Returns the error with a message for the user: `StoreAway`, unless what was asked for can't be had by waiting."""
    return StoreAway(message) if may_pass(error) else ConfigError(message)


def may_pass(error: OSError) -> bool:
    """Whether a disk or a store may give in a moment what it does not give now."""
    return error.errno not in _LASTING and type(error.__cause__).__name__ not in _LASTING_OF_STORES
