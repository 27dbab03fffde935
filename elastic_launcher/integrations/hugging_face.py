"""Begins a job in which Hugging Face's libraries take each process for one that is alone."""

from __future__ import annotations

import os

from elastic_launcher.torch import Job
from elastic_launcher.torch import init as init_job

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def init(global_batch_size: int | None = None, max_batch_per_gpu: int | str | None = None, *, seed: int = 0) -> Job:
    """Makes this process a rank of an elastic training job; see `elastic_launcher.torch.init`.

    Call it before `TrainingArguments` or an Accelerator is made: they would form a process group of fixed size from the
    variables that say which rank this is. These are gone from the environment until the first batch, from which on they
    have the values of the job. Call it before the model is made, too: all ranks then draw the same first weights.

    Args:
        global_batch_size: Samples of each optimizer step, over all ranks.
        max_batch_per_gpu: Most samples that fit on one GPU at a time, or "auto".
        seed: What all random numbers derive from.
    """
    job = init_job(global_batch_size, max_batch_per_gpu, seed=seed)
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    return job
