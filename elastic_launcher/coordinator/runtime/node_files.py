"""The files of nodes that can't see this machine's: sends them what they need, and writes what they report.

It writes the same files as a node of this machine, so that their readers need not know where a node lives. Only
senders with the job's key get here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from elastic_launcher.checkpoint import landmark
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.failure_excerpt import read_exit
from elastic_launcher.host.retry import Retry, given_up
from elastic_launcher.host.transient import StoreAway, may_pass
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, job_id, read_content, write_json


class NodeFiles:
    """Serves files to nodes, and writes what they report.

    Args:
        store: ``host:port`` of the store in which groups meet.
        home: What they run, and the marker file of the checkpoint folder.
    """

    def __init__(self, config: JobConfig, layout: Layout, store: str, home: CoordinatorHost) -> None:
        self._config = config
        self._layout = layout
        self._store = store
        self._home = home
        self._taken: dict[tuple[int, int], int] = {}

    def begin(self, node: int) -> dict[str, Any]:
        """Returns all that a node has to know before it starts; offsets of its logs restart at 0."""
        self._taken = {place: end for place, end in self._taken.items() if place[0] != node}
        return self.job()

    def job(self) -> dict[str, Any]:
        """Returns what every node has to know before it starts."""
        content = read_content(self._layout.path).to_dict()
        told = {"id": job_id(self._layout), "config": self._config.to_dict(), "store": self._store, "content": content}
        mark = self._home.landmark
        known = None if mark is None else {"name": mark.name, "value": mark.value}
        return {**told, "code": dict(self._home.code), "landmark": known}

    async def open(self, warn: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Puts the marker file into the checkpoint folder, with retries while the folder is unavailable.

        Raises:
            ConfigError: If it can't be written.
            StoreAway: If it was away for all of ``--orphan-timeout``.
        """
        if self._home.landmark is None:
            return
        seconds = self._config.orphan_timeout
        try:
            await Retry(StoreAway, seconds, warn, clock).call_in_thread(partial(self._put, self._home.landmark))
        except StoreAway as away:
            raise StoreAway(given_up(away, seconds)) from away

    def _put(self, mark: landmark.Landmark) -> None:
        try:
            landmark.put(self._folder, mark)
        except OSError as error:
            why = f"--checkpoint-dir is {self._folder}: the launcher can't write there ({error.strerror})"
            if may_pass(error):
                raise StoreAway(why) from error
            raise ConfigError(f"{why}; {landmark.MEND}") from error

    def judge(self, node: int, name: str) -> str:
        """Returns why the launcher can't go on from what a node saves, by a sample that it has made; "" if it can."""
        mark = self._home.landmark
        if mark is None or "/" in name or not name.startswith(f"{mark.name}."):
            return ""
        with contextlib.suppress(OSError):  # away for now: that is found, and waited for, where it is needed
            if wrong := landmark.judge(self._folder, name):
                return f"--checkpoint-dir is {self._folder}: the launcher {wrong}; {landmark.ONE_GROUP}"
        return ""

    def missed(self) -> str:
        """Returns what is wrong with the folder in which a coordinator before this one did so; "" if nothing is."""
        if self._home.landmark is None or not (wrong := landmark.missed(self._folder, self._home.landmark)):
            return ""
        return f"--checkpoint-dir is {self._folder}: this launcher {wrong}; {landmark.MEND}"

    def close(self) -> None:
        """Removes what nodes know the folder by: there are none any more."""
        if self._home.landmark is not None:
            landmark.remove(self._folder, self._home.landmark)

    @property
    def _folder(self) -> Path:
        return Path(self._config.checkpoint_dir or self._layout.checkpoints)

    def note_exit(
        self, node: int, local_rank: int, exit_code: int | None, signal: int | None, first_member: int | None = None
    ) -> None:
        """Writes down how a rank ended, unless its node has done so, which may say who its first member was then."""
        path = self._layout.exit_file(node, self._place(node, local_rank))
        ended = {"exit_code": exit_code, "signal": signal}
        member = 0 if first_member is None else first_member + local_rank
        if read_exit(path, member) is None:
            with contextlib.suppress(OSError):  # a full disk: the observation is made all the same
                write_json(path, ended if first_member is None else {**ended, "member": member})

    def exits(self, node: int, members: Sequence[int]) -> tuple[tuple[int, Exit], ...]:
        """Returns by local rank how a node's members, given in that order, have ended, as far as they have."""
        found = ((place, read_exit(self._layout.exit_file(node, place), one)) for place, one in enumerate(members))
        return tuple((place, ended) for place, ended in found if ended is not None)

    def add_to_log(self, node: int, local_rank: int, offset: int, data: str) -> None:
        """Appends to a rank's log what its node sends, in base64, without what was sent before.

        ``offset`` is how many bytes the node has sent before, over the rank's whole life.

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
