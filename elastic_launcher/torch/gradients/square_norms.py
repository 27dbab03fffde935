"""Square norms of gradients by parameter group, as the optimizers see them.

SGD sees the gradient itself. Adam divides it by the root of its second moment, element by element, so that the noise of
an element counts by what it changes; a plain norm is that of the few elements with the largest gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from elastic_launcher.torch.gradients.buckets import TAIL_TYPES, Bucket, Layout, Run, place_in

FEWEST_STEPS = 16  # that Adam's second moment has seen: the mean of 1/v is too large by n / (n - 2) after n of them
ADAM = (Adam, AdamW)


class SquareNorms:
    """Adds up square norms of what lies in buckets.

    Args:
        optimizers: The prepared ones; their groups are numbered through.
        scalers: The prepared gradient scalers.
    """

    def __init__(self, optimizers: list[Optimizer], scalers: list[torch.amp.GradScaler]) -> None:
        self._optimizers = optimizers
        self._scalers = scalers
        self._groups: list[tuple[Optimizer, dict[str, Any]]] = []
        self._sizes: list[tuple[int, int]] = []
        self._squares: list[tuple[int, torch.Tensor]] = []
        self._counts: dict[Run, list[float]] = {}
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
        self._groups, self._sizes = groups, sizes
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
            self._squares.append((run.group, self._square(run, flat)))

    def take(self, layout: Layout) -> torch.Tensor:
        """Returns what was added up, by group, without the gradient scaler's factor, and begins anew."""
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

    def _square(self, run: Run, flat: torch.Tensor) -> torch.Tensor:
        """Returns the square norm of a run's gradient, as its optimizer sees it."""
        optimizer, group = self._groups[run.group]
        return self._precondition(run, flat, optimizer, group) if isinstance(optimizer, ADAM) else _square_norm(flat)

    def _precondition(self, run: Run, flat: torch.Tensor, optimizer: Optimizer, group: dict[str, Any]) -> torch.Tensor:
        """Returns the square norm of a gradient divided by √v̂ + ε, as Adam divides its mean.

        What Adam has seen no gradient of, or for too few steps, counts nothing: √v̂ says nothing there.
        """
        scratch, places = self._places(run)
        name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
        states = [optimizer.state.get(parameter) or {} for parameter in run.parameters]
        counts = self._counts_of(run, states)
        known = [number for number, count in enumerate(counts) if count >= FEWEST_STEPS]
        for number, place in enumerate(places):
            if counts[number] < FEWEST_STEPS:
                place.zero_()
        if not known:
            return scratch.new_zeros(())
        torch._foreach_copy_([places[number] for number in known], [states[number][name] for number in known])
        torch.threshold_(scratch.sqrt_(), 0.0, math.inf)
        roots = [math.sqrt(1 - float(group["betas"][1]) ** counts[number]) for number in known]
        root = roots[0]
        if any(one != root for one in roots):
            torch._foreach_div_([places[number] for number in known], roots)
            root = 1.0
        scratch.add_(float(group["eps"]) * root)
        return _square_norm(torch.div(flat, scratch, out=scratch)) * root**2

    def _counts_of(self, run: Run, states: list[dict[str, Any]]) -> list[float]:
        """Returns how many steps each parameter of a run has had; read once a step, since it waits for a GPU."""
        if run not in self._counts:
            steps = [state.get("step", 0.0) for state in states]
            device = next((step.device for step in steps if isinstance(step, torch.Tensor)), None)
            self._counts[run] = torch.stack([torch.as_tensor(step, device=device).float() for step in steps]).tolist()
        return self._counts[run]

    def _places(self, run: Run) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns scratch memory for a run, and in it the places of its parameters."""
        dtype = _wide(run.flat.dtype)
        key, numel = (dtype, run.flat.device), len(run.flat)
        if key not in self._scratch or len(self._scratch[key]) < numel:
            self._scratch[key] = torch.empty(numel, dtype=dtype, device=run.flat.device)
        scratch, places, offset = self._scratch[key][:numel], [], 0
        for parameter in run.parameters:
            places.append(place_in(scratch, offset, parameter))
            offset += parameter.numel()
        return scratch, places


def _check(optimizers: Sequence[Optimizer], scalers: Sequence[torch.amp.GradScaler]) -> None:
    """Refuses what can't be measured in one unit.

    Raises:
        TypeError: That names it.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, (SGD, *ADAM)):
            raise TypeError(
                f"the gradient noise is measured for SGD, Adam and AdamW, not for {type(optimizer).__name__}: that "
                "scales gradients in a way of its own, under which another batch is worth something else"
            )
    if len({isinstance(optimizer, ADAM) for optimizer in optimizers}) > 1:
        raise TypeError(
            "the gradient noise is measured for SGD, or for Adam and AdamW, not for both in one job: Adam's is of the "
            "gradient divided by its second moment, so that they don't add up"
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
