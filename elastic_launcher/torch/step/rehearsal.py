"""The rehearsal: runs the script's loop body before this process is admitted, and keeps nothing of it.

All that is slow the first time, and the first time at another size, is then done before peers wait. A body that decides
by a counter of its own is refused here, because `job.step` is the same in each try.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate

import torch

from elastic_launcher.torch import rng
from elastic_launcher.torch.data.micro_batches import SPARE_SAMPLES, MicroBatch
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.shard.tensors import is_sharded
from elastic_launcher.torch.state.buffers import is_averaged
from elastic_launcher.torch.step.memory import note_limit, reserve_optimizer_state

KEPT_ELEMENTS = 2**16  # of a parameter that is put back: copies of larger ones would take memory that a try needs
KEPT_TOGETHER = 2**24  # of all of them
FINENESS = 8  # a limit is found but for this part of it: each further try costs a run of the loop body


def rehearse(session: Session, micro_batch: Callable[[int], MicroBatch]) -> Iterator[MicroBatch]:
    """Yields the largest and the smallest micro-batch of the next step, and twice more the largest where the script's
    calls differ; smaller ones where the largest does not fit into memory.

    ``micro_batch`` makes one of at most so many samples of the next step, of which nothing is kept.

    Raises:
        RuntimeError: If the script calls `job.backward` for other optimizers from one try to the next, or has buffers
            that can't be averaged, or its forward passes write a parameter by what is in their batch.
        TypeError: If the script's state can't travel to a joiner.
    """
    member = session.member
    ranks = max(1, member.standing.expected_world_size) if member is not None else 1
    count = micro_batch(1).count
    seed = rng.step_seed(session.seed, session.position.step, 0)
    _warn_of_enumerate()

    def largest() -> int:
        shares = session.shares.of(count, Division(0, ranks)).values()
        return max(size for share in shares for size in share.micro_batches)

    def smallest() -> int:
        return min(SPARE_SAMPLES, session.shares.max_micro_batch)

    def try_once(size: int, fits: int = 0) -> Generator[MicroBatch, None, MicroBatch | None]:
        rng.seed_all(seed, session.device)
        micro = micro_batch(size)
        micro.fits = fits
        yield micro
        parameters.end_try(counts=not micro.dropped)
        if not micro.dropped:
            return micro
        session.buffers.undo_step()  # it was too large for memory
        return None

    def try_body(size: Callable[[], int]) -> Generator[MicroBatch, None, list[int]]:
        while (micro := (yield from try_once(size()))) is None:
            pass
        session.buffers.check()
        session.buffers.refuse_changed(still)
        if largest() > smallest():  # else both tries have the same samples: what is done once alone must show
            session.buffers.undo_step()
        return micro.owners

    session.buffers.begin_step()
    parameters = WrittenParameters(session.parameters())
    still = session.buffers.still()
    if session.shares.finds_limit and session.shares.known_limit is None and member is not None:
        least = max(1, session.shares.least_world_size)
        yield from find_limit(session, max(session.shares.one(count, Division(0, least)).micro_batches), try_once)
    first = yield from try_body(largest)
    second = yield from try_body(smallest)
    if first != second:  # because of the samples, or of something that changes from try to try
        for _ in range(2):
            again = yield from try_body(largest)
            if again != first:
                raise RuntimeError(_name_counter(first, again))
    session.buffers.drop_step()
    parameters.refuse_different(session.state.name_of)
    session.state.capture()  # state that can't be sent to a joiner is refused now, not when one comes
    if member is not None:
        member.formations.warm_up()
    gc.collect()
    gc.freeze()  # a full collection over all that was imported takes longer than any resize


class WrittenParameters:
    """Parameters into which a loop body writes without an optimizer, such as those that the first batch initialises.

    Those of few elements are put back after each try. A write that does the same in each try, as a norm of the weights
    does, is done again in the first step. One that does not would be another one on each rank.

    Args:
        parameters: All parameters, as they are before the rehearsal.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        small = [p for p in parameters if p.numel() <= KEPT_ELEMENTS and not is_sharded(p) and is_averaged(p)]
        together = accumulate(p.numel() for p in small)
        self._kept = [p for p, elements in zip(small, together, strict=True) if elements <= KEPT_TOGETHER]
        self._before = [parameter.detach().clone() for parameter in self._kept]
        self._first: dict[int, torch.Tensor] | None = None  # what the first try has written, by number
        self._different: set[int] = set()

    def end_try(self, *, counts: bool) -> None:
        """Puts the values before a try back; where it ``counts``, compares what it has written with the first one."""
        written = {}
        for number in self._changed():
            written[number] = self._kept[number].detach().to(self._before[number].device, copy=True)
            self._kept[number].data.copy_(self._before[number])
        if not counts:
            return
        first = self._first = written if self._first is None else self._first
        for number in first.keys() | written.keys():
            before = self._before[number]
            if not _same_write(before, first.get(number, before), written.get(number, before)):
                self._different.add(number)

    def _changed(self) -> list[int]:
        """Returns which parameters have other values than before; waits for each device once."""
        flags: dict[torch.device, dict[int, torch.Tensor]] = {}
        for number, (parameter, before) in enumerate(zip(self._kept, self._before, strict=True)):
            if parameter.shape == before.shape:
                there = before.to(parameter.device)
                flags.setdefault(parameter.device, {})[number] = (parameter.detach() != there).any()
        return [
            number
            for found in flags.values()
            for number, flag in zip(found, torch.stack(list(found.values())).tolist(), strict=True)
            if flag
        ]

    def refuse_different(self, name_of: Callable[[torch.Tensor], str]) -> None:
        """Refuses a parameter that one try has left with other values than another one.

        Raises:
            RuntimeError: If there is one.
        """
        if not self._different:
            return
        names = sorted(name_of(self._kept[number]) for number in self._different)
        raise RuntimeError(
            f"the loop body changes {', '.join(names[:5])}{' and others' if len(names) > 5 else ''} without an "
            "optimizer, and not the same way in each try of its rehearsal: by what is in the batch, or only once. Each "
            "rank has other samples, and would have other parameters. For an initialisation by data, run a forward "
            "pass on the same samples on every rank before job.prepare; or keep what forward passes write in buffers, "
            "which ranks average"
        )


def _same_write(before: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tries have written the same into a parameter, but for rounding."""
    if torch.equal(one, other):
        return True
    if before.is_complex():
        before, one, other = (torch.view_as_real(value) for value in (before, one, other))
    eps = torch.finfo(before.dtype).eps
    before, one, other = (value.double().nan_to_num() for value in (before, one, other))
    rounding = 8 * eps * torch.maximum(before.abs(), one.abs()).max()
    return bool((one - other).abs().max() <= 1e-3 * (one - before).abs().max() + rounding)


def find_limit(
    session: Session, most: int, try_once: Callable[[int, int], Generator[MicroBatch, None, MicroBatch | None]]
) -> Generator[MicroBatch, None, None]:
    """Finds the largest micro-batch that fits, of at most ``most`` samples: by doubling, then by bisection.

    ``try_once`` tries a size, where another one is known to fit, and returns None where it does not fit.
    """
    fits, tried = session.shares.least_micro_batch, min(most, SPARE_SAMPLES * session.shares.least_micro_batch)
    reserved = reserve_optimizer_state(session)
    too_large = most + 1
    while fits < tried < too_large:
        if (yield from try_once(tried, fits)) is None:
            too_large = tried
        else:
            fits = tried
        doubles = too_large > most
        if not doubles and too_large - fits <= max(1, fits // FINENESS):
            break
        tried = min(most, 2 * fits) if doubles else (fits + too_large) // 2
    reserved.clear()
    if too_large <= most:
        note_limit(session, too_large, fits)


def _name_counter(first: list[int], again: list[int]) -> str:
    def calls(owners: list[int]) -> str:
        named = [f"for optimizer {owner}" if owner >= 0 else "without optimizer=" for owner in owners]
        return f"job.backward {' and '.join(named)}" if named else "no job.backward"

    return (
        f"the loop body calls {calls(first)} in one try of its rehearsal, and {calls(again)} in another one with the "
        "same samples at the same job.step. So it decides by something that changes with each micro-batch: the number "
        "that enumerate() gives, a counter or a random generator of its own, or what it keeps from one micro-batch to "
        "the next. A process that joins has other values of these, and they follow micro-batches, not steps. Decide by "
        "job.step, read at the top of the loop body (`turn = job.step % 3 == 0`)"
    )


def _warn_of_enumerate() -> None:
    """Warns where the script numbers its micro-batches by ``enumerate``."""
    frames: list[types.FrameType] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frames.append(frame)  # ours, and those of a progress bar around the loader, say
        frame = frame.f_back
    for numbered in (one for one in gc.get_objects() if type(one) is enumerate):
        within = gc.get_referents(numbered)
        if any(isinstance(one, types.GeneratorType) and one.gi_frame in frames for one in within):
            warnings.warn(
                "enumerate() around a training loader numbers the micro-batches of this process: those of the "
                "rehearsal and of a step that is done again too, and from 0 in a process that joins. For what is to "
                "happen every so many steps, use job.step under `if job.sync_gradients:`",
                stacklevel=len(frames) + 2,
            )
            return
