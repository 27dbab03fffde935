"""The memory of tensors of any layout: what it consists of, and a checksum over it."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

_WORD = 8


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one block of numbers: not sparse, quantized or nested."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested


def same_objects(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether two lists hold the same tensors, not equal ones."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


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
    flat = tensor.data.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    octets = flat.view(torch.uint8)
    if octets.storage_offset() % _WORD:
        octets = octets.clone()
    whole = octets.numel() // _WORD * _WORD
    return octets[:whole].view(torch.int64).sum() + octets[whole:].sum(dtype=torch.int64)


def bit_sum(tensor: torch.Tensor) -> int:
    """Returns a checksum of a tensor of any kind."""
    return sum(int(sum_of_bits(part)) * (2 * number + 1) for number, part in enumerate(parts(tensor)))
