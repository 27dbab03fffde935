"""Hints that never change: a job that nobody advises may use all that it asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from elastic_launcher.hints.document import API_VERSION
from elastic_launcher.hints.source import HintRead


class StaticSource:
    """Allows MAX nodes, for good.

    Args:
        min_nodes: Fewest nodes of the job.
        max_nodes: Most nodes of it.
        nproc_per_node: GPUs of each node.
    """

    def __init__(self, min_nodes: int, max_nodes: int, nproc_per_node: int = 1) -> None:
        self._nodes = (min_nodes, max_nodes)
        self._gpus = max_nodes * nproc_per_node

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return "--nodes {}:{}".format(*self._nodes)

    async def changes(self) -> AsyncIterator[HintRead]:
        """Yields one document, and then nothing until its task is cancelled."""
        yield HintRead(json.dumps({"apiVersion": API_VERSION, "defaults": {"gpus": {"allowed": self._gpus}}}))
        await asyncio.Event().wait()
