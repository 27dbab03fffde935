"""What the strategies for Trainer and Fabric say of ranks: a rank may change, and nobody is rank 0 at first."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import torch

from elastic_launcher.torch import Job

ALL_GATHER = (
    "all_gather returns another shape at each number of ranks, which changes: use a torchmetrics metric in "
    "validation_step, or job.gather(fn, loader), which brings rows together in the order of the samples"
)


class Ranks:
    """The ranks of a job, as one of Lightning's strategies shows them.

    Attributes:
        job: The job.
        left: Whether this process is on its way out of the job.
    """

    job: Job
    left: bool = False

    @property
    def global_rank(self) -> int:
        """The rank in the job; 1 before this process is admitted, since none is rank 0 then."""
        rank = self.job.rank
        return 1 if rank is None or self.left else rank

    @global_rank.setter
    def global_rank(self, rank: int) -> None:
        """Lightning's own: each process is alone."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is rank 0 now."""
        return self.global_rank == 0

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Is refused: what it returned would have another shape after a resize.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(ALL_GATHER)


class PresentRank:
    """What `rank_zero_only.rank` is to be: a number that follows the rank of this process as it changes.

    Args:
        ranks: Knows the rank.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __eq__(self, other: object) -> bool:
        return self._ranks.global_rank == other

    def __gt__(self, other: int) -> bool:
        return self._ranks.global_rank > other

    def __bool__(self) -> bool:
        return self._ranks.global_rank != 0

    def __str__(self) -> str:
        return str(self._ranks.global_rank)


def reduced(job: Job, tensor: torch.Tensor, reduce_op: Any) -> torch.Tensor:
    """Returns what a value is reduced to over all ranks.

    Args:
        job: The job.
        tensor: This rank's value.
        reduce_op: mean, avg, sum, max or min; or torch's.
    """
    op = str(reduce_op).rpartition(".")[2].lower()
    found = job.reduce(tensor, op={"avg": "mean"}.get(op, op))
    return torch.as_tensor(found, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


def broadcasted(job: Job, number: float, src: int) -> Any:
    """Returns the number of one rank, a boolean too."""
    return type(number)(job.reduce(float(number) if job.rank == src else 0.0, op="sum"))


def checked_text(obj: Any) -> Any:
    """Returns a text or a path, which are the same on all ranks.

    Raises:
        TypeError: For what Lightning would send from one rank to the others.
    """
    if obj is not None and not isinstance(obj, (str, PurePath)):
        raise TypeError(
            f"broadcast takes numbers in an elastic job, and texts and paths that are the same on all ranks, not "
            f"{type(obj).__name__}: a process that joins later would not get it. Keep it in a buffer of the module, or "
            "give it to job.register"
        )
    return obj
