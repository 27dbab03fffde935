"""Writes a checkpoint as `torch.save` or `torch.distributed.checkpoint` does, for other tools."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from elastic_launcher.checkpoint import CheckpointError, Manifest
from elastic_launcher.checkpoint.files import STATE
from elastic_launcher.checkpoint.shards import read_shards
from elastic_launcher.host.files import replacing
from elastic_launcher.torch.state.codec import decode


def export(folder: Path, manifest: Manifest, path: Path) -> None:
    """Writes one file, as `torch.save` does; one that is there is replaced.

    `torch.load` reads it with ``weights_only``, except where registered state holds numpy arrays.

    Raises:
        CheckpointError: If the checkpoint can't be read.
        OSError: If the file can't be written.
    """
    document = gather(folder, manifest)
    try:
        with replacing(path) as file:
            torch.save(document, file)
    except RuntimeError as error:  # torch's writer, where the disk takes no more
        raise OSError(str(error.__context__ or error)) from error


def export_dcp(folder: Path, manifest: Manifest, path: Path) -> None:
    """Writes a folder that `torch.distributed.checkpoint.load` reads, in one process or in many.

    It must not be there yet, or be empty.

    Raises:
        CheckpointError: If the checkpoint can't be read.
        OSError: If the folder can't be written, or holds something.
    """
    document = gather(folder, manifest)
    draft = path.parent / f".{path.name}.{os.getpid()}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it saves in one process is the intent
            save(document, checkpoint_id=draft)
        draft.replace(path)
    except CheckpointException as error:  # what went wrong in its writers; its own words are a traceback
        raise OSError("; ".join(str(what) for what, _ in error.failures.values())) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def gather(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Returns ``model`` (a state dict, tied weights under all their names), ``optimizers``, ``schedulers``,
    ``scalers``, ``registered``, ``state`` (the script's ``job.state``), ``step``, ``epoch`` and ``samples``.

    An optimizer's state is keyed by its parameters' names, and by its own keys where it is of none of them.

    Raises:
        CheckpointError: If the checkpoint can't be read.
    """
    try:
        header: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE} can't be read: {error}") from error
    try:
        stored = dict(read_shards(folder, manifest))
    except OSError as error:  # of reading, not of what is written
        raise CheckpointError(f"{folder} can't be read: {error}") from error
    tensors = [stored[number] for number in manifest.order]
    for number, _, entries in header.get("parts", ()):
        tensors[number] = torch.cat([stored[entry] for entry in entries])
    names = [*(name for name, _ in header["parameters"]), *header["buffers"]]
    model = dict(zip(names, tensors, strict=False))
    model.update({other: model[name] for other, name in manifest.aliases.items()})
    return {
        "model": model,
        "optimizers": [_optimizer(one, tensors, model) for one in header["optimizers"]],
        "schedulers": [decode(one, tensors) for one in header["schedulers"]],
        "scalers": [decode(one, tensors) for one in header["scalers"]],
        "registered": {name: decode(encoded, tensors) for name, encoded in header["registered"]},
        "state": decode(header["user"], tensors),
        "step": manifest.step,
        "epoch": manifest.epoch,
        "samples": manifest.samples,
    }


def _optimizer(encoded: dict[str, Any], tensors: list[torch.Tensor], model: dict[str, torch.Tensor]) -> dict[str, Any]:
    of_parameters = {name: decode(values, tensors, model[name]) for name, values in encoded["state"]}
    return {
        "state": of_parameters | decode(encoded["shared"], tensors),
        "param_groups": [{"params": names, **decode(options, tensors)} for names, options in encoded["groups"]],
    }
