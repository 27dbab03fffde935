"""What a state_dict holds comes back as it was, through strict JSON text and other memory; what can't is named."""

from __future__ import annotations

import collections
import enum
import json
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.torch.state.codec import decode, encode, match


def _through(value: Any) -> Any:
    skeleton, tensors = encode(value, "thing")
    text = json.dumps(skeleton, allow_nan=False)
    return decode(json.loads(text), [tensor.clone() for tensor in tensors])


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal in value and kind, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            _same(x, y)
            for one, other in zip(a.items(), b.items(), strict=True)
            for x, y in zip(one, other, strict=True)
        )
    if isinstance(a, (list, tuple, collections.deque)):
        return getattr(a, "maxlen", None) == getattr(b, "maxlen", None) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b or (a != a and b != b))


KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary().map(len)
KEYS = KEYS | st.tuples(KEYS, KEYS)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
TENSORS = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]).flatmap(
    lambda kind: st.lists(st.integers(0, 9), max_size=4).map(lambda numbers: torch.tensor(numbers).to(kind))
)
VALUES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_nested_value_comes_back_as_it_was(value: Any) -> None:
    assert _same(_through(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {1: "int", "1": "text", 1.5: "float", None: "none", (1, "a"): "tuple", False: "bool"},
        collections.OrderedDict(b=1, a=2),
        collections.Counter({30: 1, 60: 2}),
        collections.deque([1.5, torch.ones(2), [None]], maxlen=3),
        collections.deque(),
        collections.defaultdict(int, a=1),
        collections.defaultdict(None, a=1),
        [float("nan"), float("inf"), -float("inf"), -0.0, 0.1 + 0.2, 10**30, "\ud800 \0 ü", b"\0\xff", ()],
        np.float32(0.1),
        np.int8(-3),
        np.bool_(True),
        np.str_("text"),
        np.str_(""),
        np.bytes_(b""),
        np.longdouble(1) / 3,
        np.datetime64("2026-01-01"),
        np.arange(6, dtype=np.uint16).reshape(2, 3).T,
        np.array(3.5),
        np.zeros((0, 3), dtype=np.complex64),
        np.array([1, 2], dtype=">i4"),
        np.array(["a", "bc"]),
        np.broadcast_to(np.array([1.0]), (3,)),
        torch.tensor(2.0),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j]),
        ["tensor", 0, ["dict", []]],
    ],
    ids=repr,
)
def test_kinds_are_kept(value: Any) -> None:
    assert _same(_through(value), value)


def test_a_default_dict_still_makes_its_values() -> None:
    assert _through(collections.defaultdict(list))["new"] == []


def test_tensors_share_their_memory_and_know_no_gradient() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    array = np.ones(3)
    _, tensors = encode({"p": parameter, "a": array}, "thing")
    tensors[0][0] = 5.0
    tensors[1][:8] = 0
    assert parameter.tolist() == [5, 1, 1]
    assert array.tolist() == [0, 1, 1]
    assert not tensors[0].requires_grad


def test_conjugated_tensors_come_back_as_their_values() -> None:
    value = torch.tensor([1 + 2j]).conj()
    assert _through(value).tolist() == [1 - 2j]


class Point(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = 1


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch may change it yet
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"foo": {"bar": object()}}, r"ema\.foo\.bar: builtins\.object cannot be carried"),
        ({"foo bar": [1, {2}]}, r"ema\['foo bar'\]\[1\]: builtins\.set cannot be carried"),
        ({"fn": len}, r"ema\.fn: builtins\.builtin_function_or_method"),
        ([1 + 2j], r"ema\[0\]: builtins\.complex"),
        ({"p": Point(1)}, r"ema\.p: .*Point cannot be carried"),
        ({"c": Colour.RED}, r"ema\.c: .*Colour cannot be carried"),
        ({3: np.array([object()])}, r"ema\[3\]: numpy\.ndarray cannot be carried"),
        ({"t": torch.eye(2).to_sparse()}, r"ema\.t: a sparse"),
        ({"t": _nested()}, r"ema\.t: a sparse, quantized, nested"),
        ({"m": np.ma.array([1, 2], mask=[False, True])}, r"ema\.m: numpy\.ma\.(core\.)?MaskedArray cannot be carried"),
        (
            {"r": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])},
            r"ema\.r: a numpy array with named fields cannot be carried",
        ),
        ([np.zeros(2, dtype=[("a", "i4")])[0]], r"ema\[0\]: a numpy value with named fields cannot be carried"),
        ({"d": collections.defaultdict(lambda: 1)}, r"ema\.d: a defaultdict that makes .* cannot be carried"),
        ({np.int64(1): 2}, r"a key of ema: int64 cannot be carried"),
    ],
)
def test_what_cannot_be_carried_is_named_by_its_path(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        encode(value, "ema")


def test_own_tensors_are_found_where_the_other_side_has_tensors() -> None:
    def make(value: float) -> dict[str, Any]:
        return {"step": 1, "a": torch.tensor(value), "b": [torch.tensor(value), {2: torch.tensor(value)}]}

    skeleton, _ = encode(make(0.0) | {"missing": torch.zeros(1)}, "thing")
    own = make(1.0)
    found = match(json.loads(json.dumps(skeleton)), own)
    assert [found[number] for number in sorted(found)] == [own["a"], own["b"][0], own["b"][1][2]]
    assert sorted(found) == [0, 1, 2]
