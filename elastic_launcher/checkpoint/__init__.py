"""The format of checkpoints on disk: a folder each, with safetensors shards and a manifest; no pickle is ever read."""

from elastic_launcher.checkpoint.files import check
from elastic_launcher.checkpoint.folder import (
    Fenced,
    Found,
    TakenOver,
    find_newest,
    kept,
    publish,
    raise_fence,
    set_aside,
)
from elastic_launcher.checkpoint.manifest import (
    CheckpointDamaged,
    CheckpointError,
    FileEntry,
    JobIdentity,
    Manifest,
    Mark,
    TensorEntry,
    differences,
)

__all__ = [
    "CheckpointDamaged",
    "CheckpointError",
    "Fenced",
    "FileEntry",
    "Found",
    "JobIdentity",
    "Manifest",
    "Mark",
    "TakenOver",
    "TensorEntry",
    "check",
    "differences",
    "find_newest",
    "kept",
    "publish",
    "raise_fence",
    "set_aside",
]
