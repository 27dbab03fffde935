"""The files of nodes: what those need that see none of this machine's is handed out, what they tell is written here.

It is written where a node of this machine writes it itself, so that nobody else has to know where a node lives. Only
who proves the job's key gets here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Mapping
from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.account import job_id
from elastic_launcher.coordinator.last_words import read_exit
from elastic_launcher.coordinator.roster import Exit
from elastic_launcher.workdir import Layout, write_json


class NodeFiles:
    """Hands out what nodes need, and keeps what they tell.

    Args:
        config: The job.
        layout: Its work directory.
        store: ``host:port`` of the store in which groups meet.
        code: What they run; see `where.Home`.
    """

    def __init__(self, config: JobConfig, layout: Layout, store: str, code: Mapping[str, str]) -> None:
        self._config = config
        self._layout = layout
        self._store = store
        self._code = code
        self._taken: dict[tuple[int, int], int] = {}

    def job(self) -> dict[str, Any]:
        """Returns all that a node has to know before it starts."""
        config = self._config.to_dict()
        return {"id": job_id(self._layout), "config": config, "store": self._store, "code": dict(self._code)}

    def note_exit(self, node: int, local_rank: int, exit_code: int | None, signal: int | None) -> None:
        """Writes down how a rank ended, unless its node has done so."""
        path = self._layout.exit_file(node, self._place(node, local_rank))
        if not path.exists():
            with contextlib.suppress(OSError):  # a full disk: who asks is told all the same
                write_json(path, {"exit_code": exit_code, "signal": signal})

    def exits(self, node: int) -> tuple[tuple[int, Exit], ...]:
        """Returns how a node's processes ended, by local rank, as far as they have."""
        places = range(self._config.nproc_per_node)
        found = ((place, read_exit(self._layout.exit_file(node, place))) for place in places)
        return tuple((place, ended) for place, ended in found if ended is not None)

    def add_to_log(self, node: int, local_rank: int, offset: int, data: str) -> None:
        """Adds to what a rank's script wrote; what was told before is left out.

        Args:
            node: The node.
            local_rank: The rank's place there.
            offset: How many bytes the node has told before, over the rank's whole life.
            data: What comes then, in base64.

        Raises:
            ValueError: If it is no base64.
        """
        place = node, self._place(node, local_rank)
        try:
            told = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"data must be base64: {error}") from error
        known = self._taken.get(place, offset)
        new = told[max(0, known - offset) :]
        with contextlib.suppress(OSError), open(self._layout.rank_log(*place), "ab") as log:  # a full disk loses lines
            log.write(new)
        self._taken[place] = max(known, offset + len(told))

    def _place(self, node: int, local_rank: int) -> int:
        if local_rank not in range(self._config.nproc_per_node):
            raise LookupError(f"node {node} has no local rank {local_rank}")
        return local_rank
