"""Writes frozen parameters into files of their own, which later checkpoints take over as long as nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from elastic_launcher.checkpoint.manifest import FileEntry, TensorEntry
from elastic_launcher.checkpoint.shards import divide, entry_of, write_shard, write_shards
from elastic_launcher.torch.state.tensors import digest

Carry = Callable[[FileEntry], bool]
"""Brings a file of the last checkpoint into the next one, and returns whether it has."""


class FrozenShards:
    """Remembers what this process has written, from one checkpoint to the next."""

    def __init__(self) -> None:
        self._digests: dict[str, int] = {}
        self._changing: set[str] = set()  # frozen ones that something else than an optimizer changes, as a teacher's
        self._written: dict[tuple[TensorEntry, ...], tuple[list[int], FileEntry]] = {}

    def write(
        self, folder: Path, tensors: Mapping[str, torch.Tensor], frozen: Iterable[str], carry: Carry
    ) -> tuple[list[TensorEntry], list[FileEntry]]:
        """Writes a checkpoint's tensors, but for files that it takes over; returns their entries in their order.

        Args:
            folder: Where to.
            tensors: As `write_shards` takes them.
            frozen: The names of those that are not trained.
            carry: Takes over a file.

        Raises:
            OSError: If they can't be written.
        """
        before, self._digests = self._digests, {name: int(digest(tensors[name])) for name in frozen}
        self._changing |= {name for name, now in self._digests.items() if before.get(name, now) != now}
        steady = {name: tensors[name] for name in self._digests if name not in self._changing}
        kept, self._written = self._written, {}
        for number, names in enumerate(divide(steady), start=1):
            shard = f"frozen-{number:05d}.safetensors"
            entries = tuple(entry_of(name, tensors[name], shard) for name in names)
            digests = [self._digests[name] for name in names]
            known, file = kept.get(entries, (None, None))
            if file is None or known != digests or not carry(file):
                file = write_shard(folder, shard, {name: tensors[name] for name in names})
            self._written[entries] = digests, file
        rest, files = write_shards(folder, {name: one for name, one in tensors.items() if name not in steady})
        by_name = {entry.name: entry for entries in (*self._written, rest) for entry in entries}
        return [by_name[name] for name in tensors], [*(file for _, file in self._written.values()), *files]
