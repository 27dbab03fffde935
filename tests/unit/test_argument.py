"""A script's argument is one word, the same from each front; what is no word is refused by name."""

from __future__ import annotations

import datetime
import decimal
import enum
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from elastic_launcher.argument import word
from elastic_launcher.kfp_steps.arrival import sent
from elastic_launcher.options import BY_KEY, ConfigError, command_line, read_option


class Kind(enum.Enum):
    ADAM = "adam"


class Name(str, enum.Enum):  # noqa: UP042 - whose str() is no text of its own
    ADAM = "adam"


WORDS: list[tuple[Any, str]] = [
    ("", ""),
    ("0.10", "0.10"),
    ("{'a': 1}", "{'a': 1}"),
    (None, "null"),
    (True, "true"),
    (1e-4, "0.0001"),
    (1e-5, "1e-05"),
    (-0.0, "-0.0"),
    (float("inf"), "Infinity"),
    (10**30, "1" + "0" * 30),
    ([1, "a", None], '[1, "a", null]'),
    ((1, 2), "[1, 2]"),
    ({"a": {"b": [1.0, True]}}, '{"a": {"b": [1.0, true]}}'),
    ({"day": datetime.date(2026, 1, 2)}, '{"day": "2026-01-02"}'),
    ([numpy.int64(1), numpy.bool_(False)], "[1, false]"),
    (numpy.float32(0.1), "0.1"),
    (numpy.float64(1e-4), "0.0001"),
    (numpy.int64(3), "3"),
    (numpy.bool_(True), "true"),
    (numpy.arange(3), "[0, 1, 2]"),
    (torch.tensor(3), "3"),
    (decimal.Decimal("0.10"), "0.10"),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    (Path("data/train"), "data/train"),
    (Kind.ADAM, "adam"),
    (Name.ADAM, "adam"),
]
NO_WORDS: list[tuple[Any, str]] = [
    (b"x", r"b'x', of type bytes, can't be an argument: give a text, a number"),
    ({1}, r"\{1\}, of type set, can't"),
    ({(1, 2): 3}, r"of type dict, can't"),
    ([object()], r"of type list, can't"),
    (print, r"of type builtin_function_or_method, can't"),
    ("a\0b", r"'a\\x00b' can't be an argument: no program can be given a text with a NUL character"),
]


@pytest.mark.parametrize(
    ("value", "wanted"), WORDS, ids=[f"{type(value).__name__}-{wanted}" for value, wanted in WORDS]
)
def test_a_value_is_one_word_from_each_front(value: Any, wanted: str) -> None:
    assert word(value) == wanted
    assert sent({"arguments": ["--x", value]})["arguments"] == ["--x", wanted]  # of Kubeflow
    assert read_option(BY_KEY["arguments"], ["--x", value]) == {"arguments": ("--x", wanted)}  # of Hera
    assert sent({"match": {"queue": value}})["match"] == {"queue": wanted}
    if wanted:
        assert read_option(BY_KEY["match"], {"queue": value}) == {"match": {"queue": wanted}}
    else:
        with pytest.raises(ConfigError, match="must be KEY=VALUE"):  # as the launcher would
            read_option(BY_KEY["match"], {"queue": value})
    assert command_line({"match": {"queue": value}}) == [f"--match=queue={wanted}"]
    (said,) = command_line({"arguments": [value]})  # of Argo, and of a step's own command
    assert read_option(BY_KEY["arguments"], said.partition("=")[2]) == {"arguments": (wanted,)}


@pytest.mark.parametrize(("value", "told"), NO_WORDS, ids=[type(value).__name__ for value, _ in NO_WORDS])
def test_what_is_no_word_is_refused_by_name(value: Any, told: str) -> None:
    for front in (
        lambda: sent({"arguments": ["--x", value]}),
        lambda: read_option(BY_KEY["arguments"], ["--x", value]),
        lambda: command_line({"arguments": [value]}),
    ):
        with pytest.raises(ConfigError, match=f"^(--)?arguments: .*{told}"):
            front()


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="of type list, can't be an argument"):
        read_option(BY_KEY["arguments"], [endless])
