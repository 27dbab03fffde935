"""Tensors of the script's own that a forward pass changes, such as the sums of a metric: kept equal on all ranks.

Between two steps they are the same on all ranks. What the ranks' forward passes add in a step is brought together with
the gradient; what an attempt at a step has changed is undone where that is dropped. Buffers are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from elastic_launcher.torch.state.tensors import bit_sum, form, is_plain

MEAN, SUM, MAX = OPS = ("mean", "sum", "max")

Tensors = Mapping[str, torch.Tensor] | Sequence[torch.Tensor]
Key = tuple[str, str]
"""Operation and name."""


class Tracked:
    """The tracked tensors of one process, asked for anew each time: a script may put others in their place.

    Attributes:
        shifted: By number in `riding`, of sums that were reduced in this step already: the value from which what this
            rank adds is counted from then on.
        after_reduction: By name, the values right after the last reduction: the script may have changed them since.
    """

    def __init__(self) -> None:
        self._sources: list[tuple[str, Callable[[], Tensors]]] = []
        self._keys: list[Key] = []  # of the copies
        self._step: list[torch.Tensor] = []
        self._micro_batch: list[torch.Tensor] = []
        self.shifted: dict[int, torch.Tensor] = {}
        self.after_reduction: dict[str, torch.Tensor] = {}

    def add(self, tensors: Tensors | Callable[[], Tensors], op: str) -> None:
        """Adds tensors, or a function that returns them.

        Raises:
            TypeError: If they are none, or of a kind that can't be reduced so.
            ValueError: For another op, or tensors that are trained.
        """
        if op not in OPS:
            raise ValueError(f"job.track: op is {op!r}; it must be mean, sum or max")
        get = tensors if callable(tensors) else lambda: tensors
        for name, tensor in _named(get()):
            _check(name, tensor, op)
        self._sources.append((op, get))

    def _now(self) -> dict[Key, torch.Tensor]:
        """Returns the memory of all of them, as of buffers: means, then sums, then largest values."""
        return {key: tensor.data for key, tensor in self._given()}

    def _given(self) -> Iterator[tuple[Key, torch.Tensor]]:
        for op in OPS if self._sources else ():
            for number, (kind, get) in enumerate(self._sources):
                if kind == op:
                    yield from (((op, f"{number}.{name}"), tensor) for name, tensor in _named(get()))

    def tensors(self) -> list[torch.Tensor]:
        """Returns the script's own tensors."""
        return [tensor for _, tensor in self._given()]

    def riding(self) -> list[torch.Tensor]:
        """Returns means and sums as they are now, which are brought together in the gradient's tail."""
        return [tensor for (op, _), tensor in self._now().items() if op != MAX]

    @property
    def summed(self) -> int:
        """How many of these are sums, the last ones."""
        return sum(op == SUM for op, _ in self._now())

    def at_step_begin(self) -> list[torch.Tensor]:
        """Returns the values that they had when the step began."""
        return [copy for (op, _), copy in zip(self._keys, self._step, strict=True) if op != MAX]

    def largest_at_step_begin(self) -> list[torch.Tensor]:
        """Returns the values that those had when the step began of which the largest is taken."""
        return [copy for (op, _), copy in zip(self._keys, self._step, strict=True) if op == MAX]

    def largest(self) -> list[torch.Tensor]:
        """Returns those of which the largest value is taken, as they are now."""
        return [tensor for (op, _), tensor in self._now().items() if op == MAX]

    def begin_step(self) -> None:
        """Remembers the values before a step."""
        now = self._now()
        self._keys, self.shifted = list(now), {}
        self._step = _copied(self._step, list(now.values()))
        self._micro_batch = self._micro_batch if now else []

    def end_reduction(self, *, alone: bool = False) -> None:
        """Remembers the values after a reduction, as those of buffers (see `ModelBuffers.end_reduction`)."""
        now = {} if alone else self._now()
        copies = _copied(list(self.after_reduction.values()), list(now.values()))
        self.after_reduction = {name: copy for (_, name), copy in zip(now, copies, strict=True)}

    def begin_micro_batch(self) -> None:
        """Remembers the values before a micro-batch."""
        self.follow()
        self._micro_batch = _copied(self._micro_batch, list(self._now().values()))

    def undo_step(self) -> None:
        """Puts the values before the step back."""
        self._put_back(micro_batch=False)

    def undo_micro_batch(self) -> None:
        """Puts the values before the micro-batch back."""
        self._put_back(micro_batch=True)

    def _put_back(self, *, micro_batch: bool) -> None:
        self.follow()
        self.shifted = {}
        copies = self._micro_batch if micro_batch else self._step
        pairs = [
            (now, copy) for now, copy in zip(self._now().values(), copies, strict=False) if now.shape == copy.shape
        ]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([now for now, _ in pairs], [copy for _, copy in pairs])

    def follow(self) -> None:
        """Takes in what has come since the step began: it counts from nothing."""
        now = self._now()
        if list(now) == self._keys:
            return
        for copies in (self._step, self._micro_batch):
            known = dict(zip(self._keys, copies, strict=False))
            copies[:] = [known[key] if key in known else _nothing(key[0], tensor) for key, tensor in now.items()]
        self._keys = list(now)

    def check(self) -> None:
        """Compares the tensors with what they were when the step began.

        Raises:
            RuntimeError: If one has another shape or type, or has come or gone between the step's micro-batches.
        """
        now = self._now()
        if list(now) != self._keys:
            odd = sorted({name for _, name in now.keys() ^ set(self._keys)})
            raise RuntimeError(
                f"tensors given to job.track have come or gone between two micro-batches of a step ({', '.join(odd)}); "
                "return the same ones in each"
            )
        for (_, name), tensor, copy in zip(now, now.values(), self._step, strict=True):
            if (tensor.shape, tensor.dtype) != (copy.shape, copy.dtype):
                raise RuntimeError(
                    f"the tensor {name} given to job.track was {form(copy)} when the step began and is "
                    f"{form(tensor)} now; only tensors of one shape and type can be brought together"
                )

    def checksums(self) -> dict[str, int]:
        """Returns a checksum of each, by what messages call it."""
        return {f"the tracked tensor {name}": bit_sum(tensor) for (_, name), tensor in self._now().items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns copies, by name."""
        return {name: tensor.clone() for (_, name), tensor in self._now().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the values of another rank or a checkpoint; nothing with {}, of a job that tracked nothing.

        Raises:
            ValueError: If others are tracked there, or of another shape.
        """
        mine = {name: tensor for (_, name), tensor in self._now().items()}
        if state and list(state) != list(mine):
            raise ValueError(f"{', '.join(state)} there, {', '.join(mine) or 'nothing'} here")
        for name, values in state.items():
            if values.shape != mine[name].shape:  # `copy_` would spread a smaller one over ours
                raise ValueError(f"{name} is {form(values)} there, {form(mine[name])} here")
        with torch.no_grad():
            for name, values in state.items():
                mine[name].copy_(values)


def _named(tensors: Tensors) -> list[tuple[str, torch.Tensor]]:
    if isinstance(tensors, Mapping):
        return [(str(name), tensor) for name, tensor in tensors.items()]
    if isinstance(tensors, Sequence):
        return [(str(number), tensor) for number, tensor in enumerate(tensors)]
    raise TypeError(f"job.track takes a dict or a list of tensors, or a function that returns one, got {tensors!r:.80}")


def _check(name: str, tensor: Any, op: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"job.track: {name!r} is {type(tensor).__name__}; it must be a tensor")
    if tensor.requires_grad and tensor.is_leaf:
        raise ValueError(f"job.track: {name!r} is trained (requires_grad); it takes what a forward pass changes")
    real = is_plain(tensor) and not tensor.is_complex() and tensor.dtype != torch.bool
    if not real or (op == MEAN and not tensor.is_floating_point()):
        wanted = "a dense tensor of real numbers" if op == MEAN else "a dense tensor of numbers, not complex ones"
        raise TypeError(f"job.track: {name!r} is {form(tensor)}; op={op!r} takes {wanted}")


def _copied(copies: list[torch.Tensor], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns copies of tensors, in the memory of earlier ones where it fits."""
    if [(c.shape, c.dtype, c.device) for c in copies] != [(t.shape, t.dtype, t.device) for t in tensors]:
        return [tensor.clone() for tensor in tensors]
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
    return copies


def _nothing(op: str, like: torch.Tensor) -> torch.Tensor:
    """Returns the value to which nothing was added."""
    if op != MAX:
        return torch.zeros_like(like)
    return torch.full_like(like, float("-inf") if like.is_floating_point() else torch.iinfo(like.dtype).min)
