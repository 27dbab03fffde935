from __future__ import annotations

import json
import subprocess
import sys
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import pytest

from elastic_launcher.control import messages
from elastic_launcher.control.messages import Done, Message, Order, Report, decode, encode
from tests.support.message_examples import EXAMPLES, FORM


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode(json.loads(json.dumps(encode(message))), Order | Report, "it") == message


def test_there_is_an_example_of_each_kind() -> None:
    assert {type(example) for example in EXAMPLES} == {*get_args(Order), *get_args(Report)}
    assert {*get_args(Order), *get_args(Report)} == {*Message.__subclasses__()}


def test_numbers_texts_and_mappings_of_other_classes_are_sent_as_plain_ones() -> None:
    class Name(str):
        pass

    values = MappingProxyType({"loss": np.float64(0.5), "nan": float("nan"), "name": Name("x")})
    assert json.dumps(encode(messages.Log(9, 1, values))["values"]) == '{"loss": 0.5, "nan": NaN, "name": "x"}'


def test_what_has_no_place_in_json_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="complex can't be sent"):
        encode(messages.Summed({"0.3.1": 1j}))


def test_the_form_order_on_the_wire() -> None:
    assert json.loads(json.dumps(encode(FORM))) == {
        "kind": "form",
        "formation": 3,
        "generation": 2,
        "mode": "grow",
        "members": [1, 2, 4],
        "joiners": [4],
        "leavers": [],
        "sources": {"4": 1},
        "store": "127.0.0.1:29500",
        "timeout": 10.0,
        "cause": "hint",
    }


def test_fields_that_are_not_known_are_left_out() -> None:
    assert decode({"kind": "formed", "formation": 3, "n": 17, "mood": "good"}, Report, "it") == messages.Formed(3)


def test_fields_with_defaults_may_be_missing() -> None:
    assert decode({"kind": "done", "step": 3}, Report, "it") == Done(3)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "report: Object missing required field `kind`"),
        ({"kind": "dance"}, r"report: Invalid value 'dance' - at `\$.kind`"),
        ({"kind": ["formed"]}, r"report: Expected `str`.* - at `\$.kind`"),
        ({"kind": "form"}, r"report: Invalid value 'form' - at `\$.kind`"),
        ({"kind": "formed"}, "report: Object missing required field `formation`"),
        ({"kind": "formed", "formation": "3"}, r"report: Expected `int`, got `str` - at `\$.formation`"),
        ({"kind": "formed", "formation": True}, r"Expected `int`, got `bool` - at `\$.formation`"),
        ({"kind": "warm", "fingerprint": []}, r"Expected `object`, got `array` - at `\$.fingerprint`"),
        ({"kind": "ended", "step": 1, "done": 1}, r"Expected `bool`, got `int` - at `\$.done`"),
        ({"kind": "progress", "step": 1, "epoch": 0, "loss": []}, r"Expected `.*`, got `array` - at `\$.loss`"),
    ],
)
def test_what_is_no_report_is_refused_by_name(content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decode(content, Report, "report")


@pytest.mark.parametrize("field", [{"members": ["x"]}, {"members": [None]}, {"sources": {"x": 1}}, {"sources": [1]}])
def test_what_is_no_order_is_refused_by_name(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"order: Expected .* `\$.{next(iter(field))}"):
        decode({**encode(FORM), **field}, Order, "order")


def test_what_ranks_import_is_light() -> None:
    program = (
        "import sys, elastic_launcher.control, elastic_launcher.control.messages\n"
        "print([name for name in ('asyncio', 'aiohttp', 'http.client', 'torch', 'requests') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_the_package_itself_imports_nothing_of_the_control_api() -> None:
    program = "import sys, elastic_launcher; print({'aiohttp', 'msgspec', 'torch'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"
