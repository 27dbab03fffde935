"""Begins a job in which transformers takes each process for one that is alone."""

from __future__ import annotations

import os
from typing import Any

import torch

from elastic_launcher.torch import Job
from elastic_launcher.torch import init as init_job

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
CACHED = ("_setup_devices", "__cached__setup_devices")  # where TrainingArguments keeps its device


def init(global_batch_size: int | None = None, max_batch_per_gpu: int | str | None = None, *, seed: int = 0) -> Job:
    """Makes this process a rank of an elastic training job; see `elastic_launcher.torch.init`.

    Call it before `TrainingArguments` are made: they would form a process group of fixed size from the variables that
    say which rank this is. These are gone from the environment until the training begins. Call it before the model is
    made, too: all ranks then draw the same first weights.

    Args:
        global_batch_size: Samples of each optimizer step, over all ranks.
        max_batch_per_gpu: Most samples that fit on one GPU at a time, or "auto".
        seed: What all random numbers derive from.
    """
    job = init_job(global_batch_size, max_batch_per_gpu, seed=seed)
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    return job


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
