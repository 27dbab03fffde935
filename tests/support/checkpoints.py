"""Checkpoints without tensors, as the tests of the format write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_launcher.checkpoint import FileEntry, JobIdentity, Manifest, Mark, TensorEntry, publish
from elastic_launcher.checkpoint.files import STATE, seal
from elastic_launcher.checkpoint.store import CheckpointStore

JOB = JobIdentity(
    "train.py", ("--lr", "0.1"), 64, 7, "Digits of 1797 samples", True, 7, False, ("train.py 1a2b",), "s3://a"
)
WEIGHT = TensorEntry("weight", "float32", (3, 2), "model-00001.safetensors")
EMPTY = Manifest(JOB, Mark(1, 1, 0), 2, 5, 640, 3, 12.5, "0.1.0", (WEIGHT,), (0, 0), {"tied": "weight"}, ())


def manifest(step: int, generation: int = 1, term: int = 1, **more: Any) -> Manifest:
    return replace(EMPTY, mark=Mark(term, generation, step), **more)


def save(
    folder: Path, step: int, generation: int = 1, term: int = 1, keep: int = 2, job_id: str = "", **more: Any
) -> Path:
    """Writes a checkpoint whose one file tells its step."""
    wanted = manifest(step, generation, term, **more)

    def write(draft: Path) -> Manifest:
        (draft / STATE).write_text(f"the state after step {step}")
        return replace(wanted, files=(seal(draft / STATE),))

    return publish(folder, write, wanted.mark, keep, job_id)


def publish_on(store: CheckpointStore, step: int, generation: int = 1, term: int = 1, keep: int = 2) -> str:
    """Writes the same wherever a job's checkpoints are; returns where it is."""
    wanted = manifest(step, generation, term)

    def write(draft: Path, carry: Callable[[FileEntry], bool]) -> Manifest:
        (draft / STATE).write_text(f"the state after step {step}")
        return replace(wanted, files=(seal(draft / STATE),))

    path, written = store.publish(write, wanted.mark, keep)
    assert written.mark == wanted.mark
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
