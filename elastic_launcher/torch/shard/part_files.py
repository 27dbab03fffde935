"""The parts of a checkpoint: each rank of the node that saves writes its own, into the folder of the node's first rank.

None of them holds another one's part in memory. A checkpoint's header says which files hold the rows of each tensor, so
that any number of ranks can read them, each its own rows.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from elastic_launcher.checkpoint.manifest import FileEntry, TensorEntry
from elastic_launcher.checkpoint.shards import write_shards
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.shard.node import NodeShards

Written = tuple[list[TensorEntry], list[FileEntry]]


def write_when_asked(node: NodeShards, parts: Sequence[torch.Tensor], lack: str = "") -> None:
    """Writes this rank's parts into the folder that the node's first rank names, unless that gives up.

    ``lack`` says why there are none to write; the first rank then saves nothing.
    """
    with contextlib.suppress(GroupError):  # the node is lost, and its checkpoint with it
        folder = node.receive(0).decode()
        if not folder:
            return
        try:
            if lack:
                raise OSError(lack)
            each_once = {id(part): part for part in parts}
            named = {f"part{node.local_rank}.{number}": part for number, part in enumerate(each_once.values())}
            entries, files = write_shards(Path(folder), named, f"part{node.local_rank}")
            places = dict(zip(each_once, entries, strict=True))
            answer: dict[str, list[Any]] = {
                "entries": [asdict(places[id(part)]) for part in parts],
                "files": list(map(asdict, files)),
            }
        except Exception as error:  # noqa: BLE001 - the first rank waits for an answer
            answer = {"error": [str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"]}
        node.send(json.dumps(answer).encode(), 0)


class OtherParts:
    """The parts that the other ranks of a node write, as the first one sees them."""

    def __init__(self, node: NodeShards) -> None:
        self._node = node
        self._waiting = True

    def collect(self, folder: Path) -> list[Written]:
        """Has them write into a folder; returns what each has written, by rank.

        Raises:
            OSError: If one of them could not.
            GroupError: If one of them was lost.
        """
        self._tell(str(folder).encode())
        answers = [json.loads(self._node.receive(rank)) for rank in range(1, self._node.size)]
        if errors := [error for answer in answers for error in answer.get("error", ())]:
            raise OSError(errors[0])
        return [
            (
                [TensorEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in answer["entries"]],
                [FileEntry(**entry) for entry in answer["files"]],
            )
            for answer in answers
        ]

    def end(self) -> None:
        """Lets those go that still wait for a folder: nothing is saved."""
        with contextlib.suppress(GroupError):
            self._tell(b"")

    def _tell(self, folder: bytes) -> None:
        if self._waiting:
            self._waiting = False
            for rank in range(1, self._node.size):
                self._node.send(folder, rank)
