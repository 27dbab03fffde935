"""The elastic job of the process, in which models are trained."""

from __future__ import annotations

from elastic_launcher.torch import Job
from elastic_launcher.torch import init as init_job

_jobs: list[Job] = []


def init(global_batch_size: int | None = None, max_batch_per_gpu: int | str | None = None, *, seed: int = 0) -> Job:
    """Makes this process a rank of an elastic training job; see `elastic_launcher.torch.init`.

    Call it before the model is built: all ranks then draw the same first weights.

    Args:
        global_batch_size: Samples of each optimizer step, over all ranks.
        max_batch_per_gpu: Most samples that fit on one GPU at a time, or "auto".
        seed: What all random numbers derive from.
    """
    job = init_job(global_batch_size, max_batch_per_gpu, seed=seed)
    _jobs[:] = [job]
    return job


def current() -> Job:
    """Returns the job of this process.

    Raises:
        RuntimeError: Before `init`.
    """
    if not _jobs:
        raise RuntimeError("call elastic_launcher.keras.init(global_batch_size, max_batch_per_gpu) before this")
    return _jobs[0]
