"""Square norms of gradients by parameter group, as the optimizers see them.

SGD sees the gradient itself. Adam divides it by the root of its second moment, element by element, so that the noise of
an element counts by what it changes; a plain norm is that of the few elements with the largest gradients.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from elastic_launcher.torch.autoscaling import ADAM
from elastic_launcher.torch.gradients.buckets import TAIL_TYPES, Bucket, Layout, Run, is_dense, place_in

FEWEST_STEPS = 16  # that Adam's second moment has seen: the mean of 1/v is too large by n / (n - 2) after n of them


@dataclass(frozen=True)
class Piece:
    """A part of a run that is worked on at a time.

    Attributes:
        start: Where it begins in the run.
        end: Where it ends.
        parameters: What it holds gradients of.
        scratch: Memory of its size.
        places: The parameters' places in that.
        part: The part of its one parameter; None if it holds whole ones.
    """

    start: int
    end: int
    parameters: list[torch.Tensor]
    scratch: torch.Tensor
    places: list[torch.Tensor]
    part: slice | None = None


class SquareNorms:
    """Adds up square norms of what lies in buckets.

    Args:
        optimizers: The prepared ones; their groups are numbered through.
        scalers: The prepared gradient scalers.

    Attributes:
        came_from: The number that each group had before the last change, None for a new one; None before the second.
    """

    def __init__(self, optimizers: list[Optimizer], scalers: list[torch.amp.GradScaler]) -> None:
        self._optimizers = optimizers
        self._scalers = scalers
        self._groups: list[tuple[Optimizer, dict[str, Any]]] = []
        self._sizes: list[tuple[int, int]] = []
        self._lengths: list[int] = []
        self.came_from: list[int | None] | None = None
        self._squares: list[tuple[int, torch.Tensor]] = []
        self._counts: dict[tuple[int, ...], list[float]] = {}
        self._pieces: weakref.WeakKeyDictionary[Run, list[Piece]] = weakref.WeakKeyDictionary()
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def follow(self) -> bool:
        """Looks at the optimizers' groups; returns whether they have changed since the last time.

        Raises:
            TypeError: For an optimizer that scales gradients in a way that is not known.
        """
        groups = [(optimizer, group) for optimizer in self._optimizers for group in optimizer.param_groups]
        sizes = [(id(group), len(group["params"])) for _, group in groups]
        if sizes == self._sizes:
            return False
        _check(self._optimizers, self._scalers)
        lengths = [len(optimizer.param_groups) for optimizer in self._optimizers]
        self.came_from = _came_from(self._lengths, lengths) if self._lengths else None
        self._groups, self._sizes, self._lengths = groups, sizes, lengths
        return True

    def groups_of(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Returns the number of each parameter's group, -1 where it has none.

        Raises:
            RuntimeError: If one is in two groups.
        """
        found: dict[int, int] = {}
        for number, (_, group) in enumerate(self._groups):
            for parameter in group["params"]:
                if found.setdefault(id(parameter), number) != number:
                    raise RuntimeError(
                        "a parameter is in two parameter groups or two optimizers; the gradient noise is measured "
                        "where each is in one"
                    )
        return [found.get(id(parameter), -1) for parameter in parameters]

    def forget(self) -> None:
        """Drops what was added up, and what is known of the optimizers' states."""
        self._squares.clear()
        self._counts.clear()

    def add(self, bucket: Bucket, gradients: torch.Tensor | None = None) -> None:
        """Adds the square norms of a bucket's gradients, or of others that lie in memory like these."""
        for run in bucket.runs:
            flat = run.flat if gradients is None else gradients[run.start : run.start + len(run.flat)]
            self._squares += [(run.group, square) for square in self._measure(run, flat)]

    def take(self, layout: Layout) -> torch.Tensor:
        """Returns what was added up, by group, without the gradient scaler's factor, and forgets it."""
        parts: list[list[torch.Tensor]] = [[] for _ in self._groups]
        for group, square in self._squares:
            parts[group].append(square.to(layout.noise))
        self._squares.clear()
        sums = [torch.stack(found).sum() if found else layout.noise.new_zeros(()) for found in parts]
        return torch.stack(sums) / self.scale() ** 2

    def scale(self) -> float:
        """Returns by what the gradient scaler has multiplied this step's loss."""
        enabled = [scaler for scaler in self._scalers if scaler.is_enabled()]
        return float(enabled[0].get_scale()) if enabled else 1.0

    def _measure(self, run: Run, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields the square norms of the parts of a run's gradient, as its optimizer sees it."""
        optimizer, group = self._groups[run.group]
        if not isinstance(optimizer, ADAM):
            yield _square_norm(flat)
            return
        for piece in self._pieces_of(run):
            yield self._precondition(piece, flat[piece.start : piece.end], optimizer, group)

    def _precondition(
        self, piece: Piece, flat: torch.Tensor, optimizer: Optimizer, group: dict[str, Any]
    ) -> torch.Tensor:
        """Returns the square norm of a gradient divided by √v̂ + ε, as Adam divides its mean.

        What Adam has seen no gradient of, or for too few steps, counts nothing: √v̂ says nothing there.
        """
        name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
        states = [optimizer.state.get(parameter) or {} for parameter in piece.parameters]
        counts = self._counts_of(piece, states)
        known = [number for number, count in enumerate(counts) if count >= FEWEST_STEPS]
        if not known:
            return flat.new_zeros((), dtype=piece.scratch.dtype)
        if len(known) < len(counts):
            piece.scratch.zero_()
        places = [piece.places[number] for number in known]
        moments = [states[number][name] for number in known]
        torch._foreach_copy_(
            places, moments if piece.part is None else [_in_memory(moments[0], piece.parameters[0])[piece.part]]
        )
        torch.threshold_(piece.scratch.sqrt_(), 0.0, math.inf)
        roots = [math.sqrt(1 - float(group["betas"][1]) ** counts[number]) for number in known]
        root = roots[0]
        if any(one != root for one in roots):
            torch._foreach_div_(places, roots)
            root = 1.0
        piece.scratch.add_(float(group["eps"]) * root)
        return _square_norm(torch.div(flat, piece.scratch, out=piece.scratch)) * root**2

    def _counts_of(self, piece: Piece, states: list[dict[str, Any]]) -> list[float]:
        """Returns how many steps each parameter of a piece has had; read once a step, since it waits for a GPU."""
        key = tuple(map(id, piece.parameters))
        if key not in self._counts:
            steps = [state.get("step", 0.0) for state in states]
            device = next((step.device for step in steps if isinstance(step, torch.Tensor)), None)
            self._counts[key] = torch.stack([torch.as_tensor(step, device=device).float() for step in steps]).tolist()
        return self._counts[key]

    def _pieces_of(self, run: Run) -> list[Piece]:
        """Divides a run into pieces, which share one scratch memory."""
        if run not in self._pieces:
            most, dtype, device = _most(run.flat.device), _wide(run.flat.dtype), run.flat.device
            if (dtype, device) not in self._scratch:
                self._scratch[dtype, device] = torch.empty(most, dtype=dtype, device=device)
            self._pieces[run] = list(_divide(run, most, self._scratch[dtype, device]))
        return self._pieces[run]


def _divide(run: Run, most: int, scratch: torch.Tensor) -> Iterator[Piece]:
    """Divides a run: small parameters together, a large one in parts."""
    small: list[torch.Tensor] = []
    start = end = 0
    for parameter in run.parameters:
        numel = parameter.numel()
        if small and end + numel - start > most:
            yield _gather(small, start, end, scratch)
            small, start = [], end
        if numel > most and is_dense(parameter):
            for first in range(0, numel, most):
                part = slice(first, min(first + most, numel))
                place = scratch[: part.stop - first]
                yield Piece(start + first, start + part.stop, [parameter], place, [place], part)
            start = end + numel
        else:
            small.append(parameter)
        end += numel
    if small:
        yield _gather(small, start, end, scratch)


def _gather(parameters: list[torch.Tensor], start: int, end: int, scratch: torch.Tensor) -> Piece:
    """Returns the piece of whole parameters; a large one that can't be divided has memory of its own."""
    memory = scratch[: end - start] if end - start <= len(scratch) else scratch.new_empty(end - start)
    places, offset = [], 0
    for parameter in parameters:
        places.append(place_in(memory, offset, parameter))
        offset += parameter.numel()
    return Piece(start, end, parameters, memory, places)


def _in_memory(moment: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns the state of a parameter that is dense, element by element as this one lies in memory."""
    if moment.stride() == parameter.stride():
        return moment.as_strided((moment.numel(),), (1,))
    flat = torch.empty(moment.numel(), dtype=moment.dtype, device=moment.device)
    place_in(flat, 0, parameter).copy_(moment)
    return flat


def _most(device: torch.device) -> int:
    """Returns how many elements are worked on at a time, so that scratch memory stays small."""
    return 2**18 if device.type == "cpu" else 2**22


def _check(optimizers: Sequence[Optimizer], scalers: Sequence[torch.amp.GradScaler]) -> None:
    """Refuses what can't be measured in one unit.

    Raises:
        TypeError: That names it.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, (SGD, *ADAM)):
            raise TypeError(
                f"the gradient noise is measured for SGD, Adam and AdamW, not for {type(optimizer).__name__}: that "
                "scales gradients in a way of its own, under which another batch is worth something else. Use one of "
                "these, or leave autoscale_batch_size out"
            )
    if len({isinstance(optimizer, ADAM) for optimizer in optimizers}) > 1:
        raise TypeError(
            "the gradient noise is measured for SGD, or for Adam and AdamW, not for both in one job: Adam's is of the "
            "gradient divided by its second moment, so that they don't add up. Use one kind, or leave "
            "autoscale_batch_size out"
        )
    if sum(scaler.is_enabled() for scaler in scalers) > 1:
        raise TypeError("the gradient noise is measured with one gradient scaler at most; this job has prepared more")


def _square_norm(flat: torch.Tensor) -> torch.Tensor:
    if flat.device.type == "cpu" and flat.dtype in TAIL_TYPES:
        return torch.dot(flat, flat)  # `vector_norm` adds up one after the other there: an error of 6e-5 in 2 million
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=_wide(flat.dtype))
    return norm.square()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which numbers of a type are added up."""
    return dtype if dtype == torch.float64 else torch.float32


def _came_from(before: Sequence[int], now: Sequence[int]) -> list[int | None]:
    """Returns the number that each group had, by how many each optimizer had and has: new ones come last in theirs."""
    starts = [sum(before[:number]) for number in range(len(before))]
    known = [*zip(starts, before, strict=True), *((0, 0) for _ in now[len(before) :])]
    return [
        start + place if place < had else None
        for (start, had), has in zip(known, now, strict=True)
        for place in range(has)
    ]
