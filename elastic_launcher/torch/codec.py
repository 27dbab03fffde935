"""State as JSON and tensors: what a state_dict may hold, taken apart and put together again without pickle."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# Every value but None, booleans, whole numbers and texts becomes [tag, ...]; so does a list, and nothing is ambiguous.
_KINDS: dict[str, type] = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
    "default": collections.defaultdict,
}
CARRIED = "dicts, lists, tuples, numbers, texts, None, tensors and arrays"


def encode(value: Any, path: str) -> tuple[Any, list[torch.Tensor]]:
    """Takes a value apart.

    Args:
        value: What a ``state_dict`` returned.
        path: What to call it in an error.

    Returns:
        A JSON value, and the tensors to which it refers by number (not copied).

    Raises:
        TypeError: If something in it can't be carried; the message names its path.
    """
    tensors: list[torch.Tensor] = []
    return encode_into(value, path, tensors), tensors


def encode_into(value: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    """As `encode`, with the tensors appended to a list that other values refer to as well."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return ["np", str(value.dtype), encode_into(value.item(), path, tensors)]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["float", repr(float(value))]
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
        return ["array", len(tensors) - 1]
    if isinstance(value, (list, tuple)):
        tag = "list" if isinstance(value, list) else "tuple"
        return [tag, *(encode_into(item, f"{path}[{number}]", tensors) for number, item in enumerate(value))]
    if isinstance(value, Mapping):
        tag = next((name for name, kind in _KINDS.items() if type(value) is kind), "dict")
        pairs = []
        for key, item in value.items():
            here = f"{path}[{key!r}]"
            pairs.append([encode_into(key, here, tensors), encode_into(item, here, tensors)])
        return [tag, pairs]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{path} is {kind}, which can't be carried to other ranks: {CARRIED} can")


def decode(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """Puts a value together that `encode` took apart.

    Args:
        skeleton: The JSON value.
        tensors: In the order of `encode`.
    """
    if not isinstance(skeleton, list):
        return skeleton
    tag = skeleton[0]
    if tag == "float":
        return float(skeleton[1])
    if tag == "tensor":
        return tensors[skeleton[1]]
    if tag == "array":
        return tensors[skeleton[1]].numpy()
    if tag == "np":
        return np.dtype(skeleton[1]).type(decode(skeleton[2], tensors))
    if tag in ("list", "tuple"):
        items = [decode(item, tensors) for item in skeleton[1:]]
        return items if tag == "list" else tuple(items)
    pairs = {decode(key, tensors): decode(item, tensors) for key, item in skeleton[1]}
    if tag == "default":
        return collections.defaultdict(None, pairs)
    return _KINDS[tag](pairs)
