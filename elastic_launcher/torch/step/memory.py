"""Lowers this rank's largest micro-batch after an out-of-memory error.

A rank's samples of a step don't depend on how it divides them into micro-batches, so ranks need not agree on that. The
step is done again with smaller ones, and its gradient is the same up to rounding.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from types import CodeType

import torch

from elastic_launcher.control.messages import MicroBatchLowered
from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.membership.connection import complain
from elastic_launcher.torch.session import Session

ADVICE = (
    "the smallest micro-batch does not fit into the memory of this rank's device. Use a device with more memory, a "
    "smaller model, a lower precision or activation checkpointing"
)

FIXED = (
    "deterministic= has micro-batches of fixed sizes, so that this one can't be divided. Start a new training with a "
    "smaller max_batch_per_gpu, or with more virtual ranks"
)


OF_NODE = (
    "the ranks of a node share one model, and run the same micro-batches: none of them can do its own again in smaller "
    "ones. Lower max_batch_per_gpu"
)


def advice(session: Session) -> str:
    """Returns what to do where a micro-batch does not fit into memory, and there can't be a smaller one."""
    if session.shards is not None:
        return OF_NODE
    return FIXED if session.virtual_ranks else ADVICE


def device_kind(device: torch.device) -> str:
    """Returns the kind of a device, by which limits hold for those that join later."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def take_known_limit(session: Session) -> None:
    """Takes over how large micro-batches may be on this kind of device, where other ranks have found that out."""
    if session.member is not None:
        session.shares.known_limit = session.member.standing.micro_batch_limits.get(device_kind(session.device))


def lower_limit(session: Session, micro: MicroBatch, *, leaves: bool = False) -> bool:
    """Halves this rank's largest micro-batch, after one was too large; returns whether that is possible.

    ``leaves``: this process ends, and another one takes its place.
    """
    size, now = micro.piece[2], session.shares.max_micro_batch
    smaller = max(session.shares.least_micro_batch, micro.fits, size // 2)
    if session.virtual_ranks or session.shards is not None or smaller >= min(size, now):
        return False
    note_limit(session, size, smaller, leaves=leaves)
    return True


def note_limit(session: Session, size: int, smaller: int, *, leaves: bool = False) -> None:
    """Notes that a micro-batch of ``size`` samples was too large for this rank, where a smaller one may fit."""
    session.shares.known_limit = smaller
    kind = device_kind(session.device)
    session.report(MicroBatchLowered(session.position.step, kind, size, smaller, leaves))
    complain(f"a micro-batch of {size} samples does not fit into memory ({kind}): at most {smaller} from now on")


def reserve_optimizer_state(session: Session) -> list[torch.Tensor]:
    """Returns memory as large as the state of optimizers that have not stepped will be (Adam's, or less).

    Raises:
        OutOfMemoryError: If there is not so much; its note says what to do.
    """
    stateless = [one for one in session.state.optimizers if not one.state]
    trained = [p for one in stateless for group in one.param_groups for p in group["params"] if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in trained)
    try:
        return [torch.empty(size, dtype=torch.uint8, device=session.device) for _ in range(2)]
    except torch.OutOfMemoryError as error:
        error.add_note(
            f'max_batch_per_gpu="auto" keeps {2 * size:,} bytes free for the state of the optimizer, as much as Adam '
            "needs, and they do not fit beside the model. If your optimizer has less state, give max_batch_per_gpu as "
            "a number. Otherwise use a device with more memory, a smaller model or a lower precision"
        )
        raise


def free_memory(session: Session, error: BaseException, loss: torch.Tensor | None = None) -> None:
    """Frees what a micro-batch that broke off has left in memory, as far as the script does not hold it."""
    traceback.clear_frames(error.__traceback__)
    for held in (loss, getattr(loss, "elastic_unscaled", None)):
        if isinstance(held, torch.Tensor):
            with contextlib.suppress(RuntimeError):  # a view keeps its graph
                held.detach_()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()


class LeftAt:
    """Where a script left its training loop, which may have been by an exception: made while the loop is closed."""

    def __init__(self, micro: MicroBatch) -> None:
        self._micro = micro
        self._code: CodeType | None = None
        self._line = 0
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
            frame = frame.f_back  # ours, and those of a progress bar around the loader, say
            self._code, self._line = frame.f_code, frame.f_lineno

    def micro_batch_of(self, error: BaseException) -> MicroBatch | None:
        """Returns the micro-batch in which an error left the loop; None where it did not."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self._code and trace.tb_lineno == self._line:
                return self._micro
            trace = trace.tb_next
        return None
