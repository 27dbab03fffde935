"""What all sources of hints have in common; the cluster's watch is another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from elastic_launcher.hints.policy import HintRead


class HintSource(Protocol):
    """Where hints come from."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def changes(self) -> AsyncIterator[HintRead]:
        """Yields what is there now at once, and again after each change; ends when its task is cancelled."""
