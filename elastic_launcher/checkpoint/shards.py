"""A checkpoint's tensors in safetensors files, each memory once. The only part of the format that needs torch."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from elastic_launcher.checkpoint.files import MISSING, seal
from elastic_launcher.checkpoint.manifest import CheckpointDamaged, FileEntry, Manifest, TensorEntry

SHARD_BYTES = 2 << 30
STORED = frozenset(  # types that every version of safetensors knows; the others go as bytes
    ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)


def write_shards(
    folder: Path, tensors: Mapping[str, torch.Tensor], kind: str = "tensors"
) -> tuple[list[TensorEntry], list[FileEntry]]:
    """Writes tensors, and has them put on disk, in files whose names begin with ``kind``.

    They are contiguous, in this process's memory, and no two of them share it.

    Raises:
        OSError: If they can't be written.
    """
    entries: list[TensorEntry] = []
    files: list[FileEntry] = []
    for number, names in enumerate(divide(tensors), start=1):
        shard = f"{kind}-{number:05d}.safetensors"
        entries += [entry_of(name, tensors[name], shard) for name in names]
        files.append(write_shard(folder, shard, {name: tensors[name] for name in names}))
    return entries, files


def entry_of(name: str, tensor: torch.Tensor, shard: str) -> TensorEntry:
    """Describes a tensor in a shard."""
    return TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), shard)


def write_shard(folder: Path, shard: str, tensors: Mapping[str, torch.Tensor]) -> FileEntry:
    """Writes one file, as `write_shards` does, which must not be there yet.

    Raises:
        OSError: If it can't be written.
    """
    try:
        save_file({name: _storable(tensor) for name, tensor in tensors.items()}, folder / shard)
    except SafetensorError as error:  # its only word for a full disk
        raise OSError(f"{folder / shard}: {error}") from error
    return seal(folder / shard)


def read_shards(
    folder: Path, manifest: Manifest, wanted: Collection[int] | None = None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields each stored tensor with its number among the manifest's, a shard after the other; only the wanted ones,
    if they are named.

    Raises:
        CheckpointDamaged: If a shard is missing or damaged.
        OSError: If the disk does not give it: it may be as good as ever.
    """
    for shard in dict.fromkeys(entry.shard for entry in manifest.tensors):
        try:
            with safe_open(folder / shard, framework="pt") as file:
                for number, entry in enumerate(manifest.tensors):
                    if entry.shard == shard and (wanted is None or number in wanted):
                        yield number, _restored(file.get_tensor(entry.name), entry)
        except (SafetensorError, *MISSING) as error:
            raise CheckpointDamaged(f"{folder / shard} can't be read: {error}") from error


def divide(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Divides the tensors' names into shards, in their order."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + tensor.nbytes > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    if names:
        yield names


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    if str(tensor.dtype).removeprefix("torch.") in STORED:
        return tensor
    if sys.byteorder != "little":
        raise OSError(f"a tensor of type {tensor.dtype} can't be stored on this machine")
    return tensor.reshape(-1).view(torch.uint8)


def _restored(stored: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if stored.data_ptr() % dtype.itemsize:  # files pack tensors, and older torch takes complex ones to be aligned
        stored = stored.reshape(-1).view(torch.uint8).clone()
    return stored.view(dtype).view(entry.shape) if stored.dtype != dtype else stored
