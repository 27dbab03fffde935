"""The memory of tensors of any layout: what it consists of, what receives it, and a checksum over it."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

_WORD = 8
_PIECE_ON_CPU, _PIECE = 2**15, 2**20  # words of a digest at a time: few enough for a CPU's cache, enough for a GPU
_STRIDE, _MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47
"""Odd numbers of SplitMix64, which spread a change of one bit over a word."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one block of numbers: not sparse, quantized or nested."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested


def same_objects(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether two lists hold the same tensors, not equal ones."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def place(tensor: torch.Tensor) -> Hashable:
    """Returns what two tensors have in common that are one memory; empty ones have none to share."""
    shared = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
    return shared if tensor.numel() else id(tensor)


@dataclass(frozen=True)
class TensorForm:
    """The memory that a tensor needs to be received.

    Attributes:
        dtype: Its type, as ``float32``.
        device: ``cpu`` or ``cuda``.
        order: Its dimensions from the outermost to the innermost in memory; None if that is their own order.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str
    order: tuple[int, ...] | None

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorForm:
        """Describes a tensor."""
        order = None
        if not tensor.is_contiguous():
            by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
            order = tuple(by_stride) if tensor.permute(by_stride).is_contiguous() else None
        return TensorForm(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.device.type, order)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        size: int = getattr(torch, self.dtype).itemsize
        return size

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of this shape with its dimensions as they follow in memory."""
        return tensor if self.order is None else tensor.permute(self.order)

    def empty(self, gpu: torch.device) -> torch.Tensor:
        """Makes memory for such a tensor, on ``gpu`` if it lies on a GPU."""
        device = torch.device("cpu") if self.device == "cpu" else gpu
        dtype = getattr(torch, self.dtype)
        if self.order is None:
            return torch.empty(self.shape, dtype=dtype, device=device)
        memory = torch.empty([self.shape[i] for i in self.order], dtype=dtype, device=device)
        return memory.permute([self.order.index(i) for i in range(len(self.order))])

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Copies:
    """Copies tensors, each memory once.

    Args:
        kept: These are not copied.
    """

    def __init__(self, kept: Sequence[torch.Tensor]) -> None:
        self._known = {place(tensor): (tensor, tensor) for tensor in kept}  # alive: nothing else gets their memory

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor's copy."""
        where = place(tensor)
        if where not in self._known:
            self._known[where] = tensor, tensor.clone()
        return self._known[where][1]


def form(tensor: torch.Tensor) -> str:
    """Returns a tensor's type and shape, as ``float32[2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def describe(tensor: torch.Tensor) -> str:
    """Returns what messages call a parameter of which no name is known."""
    return f"a parameter of {tensor.numel()} elements"


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the plain tensors of which a tensor consists."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_nested:
        return [piece for part in tensor.unbind() for piece in parts(part)]
    if not tensor.is_quantized:
        return [tensor]
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [tensor.int_repr(), torch.tensor([tensor.q_scale(), float(tensor.q_zero_point())], dtype=torch.float64)]
    return [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Adds up a plain tensor's bytes as 64-bit words, in place: a sum of narrower ones would first widen them all."""
    words, rest = _words(tensor)
    return words.sum() + rest.sum(dtype=torch.int64)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Returns 64 bits that tell a plain tensor's values from others, also from the same ones in other places.

    It is computed where the tensor lies, a piece after the other. Kinds of devices have digests of their own.
    """
    words, rest = _words(tensor)
    padded = torch.nn.functional.pad(rest, (0, -rest.numel() % _WORD)).view(torch.int64)
    length = _PIECE_ON_CPU if words.device.type == "cpu" else _PIECE
    factors, scratch = torch.empty((2, length), dtype=torch.int64, device=words.device)
    _spread(torch.arange(1, length + 1, out=factors).mul_(_STRIDE), scratch, _MIX)
    factors.bitwise_or_(1)  # an odd factor loses no bit
    mixed, total = torch.empty_like(factors), torch.zeros_like(factors[0])
    for piece in (*words.split(length), padded):
        size = piece.numel()
        found, own = mixed[:size], factors[:size]
        torch.add(piece, own, out=found)
        _spread(found, scratch[:size], _MIX)
        total.mul_(_STRIDE).add_(_spread(found, scratch[:size], own).sum())
    return total


def _spread(words: torch.Tensor, scratch: torch.Tensor, factor: int | torch.Tensor) -> torch.Tensor:
    """Spreads each word's upper bits over all of it, and multiplies; in place."""
    return words.bitwise_xor_(torch.bitwise_right_shift(words, 31, out=scratch)).mul_(factor)


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a plain tensor's bytes as 64-bit words, and those that are left."""
    flat = tensor.data.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    octets = flat.view(torch.uint8)
    if octets.storage_offset() % _WORD:
        octets = octets.clone()
    whole = octets.numel() // _WORD * _WORD
    return octets[:whole].view(torch.int64), octets[whole:]


def bit_sum(tensor: torch.Tensor) -> int:
    """Returns a checksum of a tensor of any kind."""
    return sum(int(sum_of_bits(part)) * (2 * number + 1) for number, part in enumerate(parts(tensor)))
