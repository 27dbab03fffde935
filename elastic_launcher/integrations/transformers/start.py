"""What a Trainer has to know before it begins: that this process is alone, and whether the job is new."""

from __future__ import annotations

from typing import Any

import torch

from elastic_launcher.torch import Job

CACHED = ("_setup_devices", "__cached__setup_devices")  # where TrainingArguments keeps its device


def is_new(job: Job) -> bool:
    """Returns whether the job begins with this process: it does not go on from a checkpoint, nor do others train."""
    member = job._session.member
    standing = member.standing if member is not None else None
    return standing is None or not (standing.checkpoint or standing.phase or standing.epoch or standing.step)


def be_alone(args: Any, job: Job) -> None:
    """Has training arguments name the job's device and batch, and no other process.

    Raises:
        RuntimeError: If they were made where other ranks could be seen.
    """
    if args.world_size != 1:
        raise RuntimeError(
            f"the TrainingArguments know of {args.world_size} processes, in a group of fixed size: make the job with "
            "elastic_launcher.integrations.transformers.init, before TrainingArguments, and both before training"
        )
    args._n_gpu = min(args.n_gpu, 1)
    for name in CACHED:
        if name in vars(args):
            vars(args)[name] = job.device
    args.distributed_state.device = job.device
    if job.device.type == "cuda":
        torch.cuda.set_device(job.device)
    args.per_device_train_batch_size = job.global_batch_size
    args.ignore_data_skip = True  # after a checkpoint of the Trainer's own, the job begins with the next samples
