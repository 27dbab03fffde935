"""The interface of sources of hints: a file, fixed numbers, a watch of the cluster's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HintRead:
    """The result of a read.

    Attributes:
        text: The document, or None if there is none.
        identity: What distinguishes a new object from a changed one: a uid, or the count of a file's returns.
        error: Why it could not be read; empty where it is simply not there.
    """

    text: str | bytes | None
    identity: str = ""
    error: str = ""


class HintSource(Protocol):
    """A source of hints. It owns its connection."""

    @property
    def name(self) -> str:
        """The name of the source in messages."""

    def changes(self) -> AsyncIterator[HintRead]:
        """Yields what is there now at once, and again after each change, until its task is cancelled.

        What can't be read now is yielded as such, and never raised: the source goes on looking.
        """
