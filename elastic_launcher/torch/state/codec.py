"""Encodes a ``state_dict`` as JSON and tensors, and decodes it without pickle.

Invariant: ``decode(*encode(value))`` equals ``value``, kinds of containers and numbers included, also when the skeleton
went through strict JSON text and the tensors through somebody else's memory.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from elastic_launcher.torch.shard.tensors import as_shard, is_divided_as, is_sharded, local
from elastic_launcher.torch.state.tensors import is_plain

# None, booleans, whole numbers and texts are themselves; everything else is [tag, ...].
_DICTS: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
    collections.defaultdict: "default",
}
_KINDS = {tag: kind for kind, tag in _DICTS.items()}
DICT_TAGS = tuple(_KINDS)
TENSOR_TAGS = ("tensor", "part", "array", "scalar", "bytes")
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str, list, dict)}
CARRIED = "dicts, lists, tuples, deques, numbers, texts, bytes, None, tensors and numpy arrays"


def encode(
    value: Any, path: str, tensors: list[torch.Tensor] | None = None, like: torch.Tensor | None = None
) -> tuple[Any, list[torch.Tensor]]:
    """Takes a value apart.

    Args:
        value: What a ``state_dict`` returned.
        path: What to call it in an error.
        tensors: Where to append the tensors; a new list if None.
        like: The parameter as which sharded tensors in it are divided; none may be there if None.

    Returns:
        A JSON value, and the tensors to which it refers by number; they share their memory with the value's.

    Raises:
        TypeError: If something in it can't be carried; the message names its path.
    """
    found: list[torch.Tensor] = [] if tensors is None else tensors
    return _encode(value, path, found, like), found


def decode(skeleton: Any, tensors: list[torch.Tensor], like: torch.Tensor | None = None) -> Any:
    """Puts a value together that `encode` took apart; its tensors and arrays are these, in that order, not copies.

    ``like`` is the parameter to which parts of sharded tensors belong.

    Raises:
        TypeError: If there are such parts, and none is given.
    """
    if not isinstance(skeleton, list):
        return skeleton
    tag, *rest = skeleton
    if tag == "float":
        return float.fromhex(rest[0])
    if tag == "tensor":
        return tensors[rest[0]]
    if tag == "part":
        if like is None:
            raise TypeError("a sharded tensor is carried only as a parameter, and in an optimizer's state of one")
        return as_shard(like, tensors[rest[0]])
    if tag == "array":
        return tensors[rest[0]].numpy().view(np.dtype(rest[1])).reshape(rest[2])
    if tag == "scalar":
        return tensors[rest[0]].numpy().view(np.dtype(rest[1]))[0]
    if tag == "bytes":
        return tensors[rest[0]].numpy().tobytes()
    if tag == "list":
        return [decode(item, tensors, like) for item in rest]
    if tag == "tuple":
        return tuple(decode(item, tensors, like) for item in rest)
    if tag == "deque":
        return collections.deque((decode(item, tensors, like) for item in rest[1:]), maxlen=rest[0])
    pairs = {decode(key, tensors): decode(item, tensors, like) for key, item in rest[0]}
    if tag == "default":
        return collections.defaultdict(_FACTORIES[rest[1]] if rest[1] else None, pairs)
    return _KINDS[tag](pairs)


def match(skeleton: Any, own: Any) -> dict[int, torch.Tensor]:
    """Finds the tensors of a value in the places where an encoded value has tensors: by number, where both have one."""
    return dict(_match(skeleton, own))


def part_numbers(skeleton: Any) -> Iterator[int]:
    """Yields the numbers of the tensors in an encoded value that are parts of sharded ones."""
    if not isinstance(skeleton, list):
        return
    tag, *rest = skeleton
    if tag == "part":
        yield rest[0]
    elif tag in ("list", "tuple"):
        for item in rest:
            yield from part_numbers(item)
    elif tag == "deque":
        for item in rest[1:]:
            yield from part_numbers(item)
    elif tag in DICT_TAGS:
        for _, item in rest[0]:
            yield from part_numbers(item)


def _encode(value: Any, path: str, tensors: list[torch.Tensor], like: torch.Tensor | None = None) -> Any:
    if value is None or isinstance(value, (bool, str)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, torch.Tensor):
        if not is_plain(value) or value.is_meta:
            raise TypeError(f"{path}: a sparse, quantized, nested or meta tensor cannot be carried; use a dense one")
        if is_sharded(value):
            if like is None or not is_divided_as(like, value):
                raise TypeError(
                    f"{path}: a sharded tensor is carried only as a parameter, and in an optimizer's state of one, "
                    "with its shape and placements; use a plain tensor, the same on all ranks"
                )
            tensors.append(local(value))
            return ["part", len(tensors) - 1]
        tensors.append(value.detach().resolve_conj().resolve_neg())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.names is not None:
        what = "array" if isinstance(value, np.ndarray) else "value"
        raise TypeError(f"{path}: a numpy {what} with named fields cannot be carried; use a dict of its fields")
    if isinstance(value, np.ndarray) and not (value.dtype.hasobject or isinstance(value, np.ma.MaskedArray)):
        return ["array", _add_memory(value, tensors), value.dtype.str, list(value.shape)]
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        one = np.array([value])  # whose type has room for an empty text
        return ["scalar", _add_memory(one, tensors), one.dtype.str]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["float", float(value).hex()]
    if isinstance(value, bytes):
        return ["bytes", _add_memory(np.frombuffer(value, dtype=np.uint8), tensors)]
    if type(value) is list:
        return ["list", *(_encode(item, f"{path}[{number}]", tensors, like) for number, item in enumerate(value))]
    if type(value) in (tuple, torch.Size):
        return ["tuple", *(_encode(item, f"{path}[{number}]", tensors, like) for number, item in enumerate(value))]
    if type(value) is collections.deque:
        items = [_encode(item, f"{path}[{number}]", tensors, like) for number, item in enumerate(value)]
        return ["deque", value.maxlen, *items]
    if type(value) in _DICTS:
        pairs = [
            [_encode_key(key, path), _encode(item, _below(path, key), tensors, like)] for key, item in value.items()
        ]
        if type(value) is not collections.defaultdict:
            return [_DICTS[type(value)], pairs]
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is None or _FACTORIES.get(name) is factory:
            return ["default", pairs, name]
        raise TypeError(
            f"{path}: a defaultdict that makes {factory!r} cannot be carried; one of {', '.join(_FACTORIES)} can"
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{path}: {kind} cannot be carried to other ranks; give state_dict values of {CARRIED}")


def _encode_key(key: Any, path: str) -> Any:
    """Encodes a dict's key: like a value, but hashable, and so without tensors."""
    tensors: list[torch.Tensor] = []
    encoded = _encode(key, f"a key of {path}", tensors)
    if tensors:
        raise TypeError(f"a key of {path}: {type(key).__name__} cannot be carried; use a text, a number or a tuple")
    return encoded


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def _add_memory(array: np.ndarray[Any, Any], tensors: list[torch.Tensor]) -> int:
    """Appends an array's memory as bytes, and returns its number."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.flags.writeable:
        flat = flat.copy()
    tensors.append(torch.from_numpy(flat.view(np.uint8)) if flat.size else torch.empty(0, dtype=torch.uint8))
    return len(tensors) - 1


def _match(skeleton: Any, own: Any) -> Iterator[tuple[int, torch.Tensor]]:
    if not isinstance(skeleton, list):
        return
    tag, *rest = skeleton
    if tag in ("tensor", "part") and isinstance(own, torch.Tensor):
        yield rest[0], local(own)
    elif tag in ("list", "tuple") and isinstance(own, (list, tuple)):
        for item, mine in zip(rest, own, strict=False):
            yield from _match(item, mine)
    elif tag == "deque" and isinstance(own, collections.deque):
        for item, mine in zip(rest[1:], own, strict=False):
            yield from _match(item, mine)
    elif tag in _KINDS and isinstance(own, Mapping):
        for key, item in rest[0]:
            yield from _match(item, own.get(decode(key, [])))
