from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from elastic_launcher.control import messages
from elastic_launcher.control.messages import (
    ORDERS,
    REPORTS,
    Active,
    Done,
    Form,
    Message,
    Progress,
    order_from_dict,
    report_from_dict,
)

FORM = Form(3, 2, "grow", (1, 2, 4), (4,), (), {4: 1}, "127.0.0.1:29500", 10.0, "hint")
EXAMPLES: list[Message] = [
    FORM,
    messages.Abandon(3),
    messages.Save(halt=True),
    messages.GoOn(),
    messages.End("over"),
    messages.Fail("boom"),
    messages.Warm({"dataset": "x of 9 samples", "shuffle": True}),
    messages.Formed(3),
    messages.FormFailed(3, "time-out"),
    Active(3, 11, 11, 0, 0.02),
    messages.Left(9),
    Progress(9, 1, 0.5, 100.0, 8, 4, 32, 576),
    messages.Log(9, 1, {"accuracy": 0.5}),
    messages.StepFailed(3, 9, "reset"),
    messages.StepRedone(9),
    messages.Saved(9, "checkpoints/step-00000009", 4096, 0.1, 0.5),
    messages.SaveFailed(9, "No space left on device"),
    messages.Halted(9),
    messages.Failed("ValueError: boom", "Traceback"),
    Done(32, 2048, "early stopping", 1),
    messages.Again(1, 32, {"0.end.1": {"named": {"loss": 0.5}}}),
    messages.Summed({"0.3.1": 0.5}),
    messages.Ended(32, True, 2048),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.KIND)
def test_a_message_survives_the_wire(message: Message) -> None:
    read = order_from_dict if message.KIND in ORDERS else report_from_dict
    assert read(json.loads(json.dumps(message.to_dict()))) == message


def test_there_is_an_example_of_each_kind() -> None:
    assert {example.KIND for example in EXAMPLES} == {*ORDERS, *REPORTS}


def test_the_form_order_on_the_wire() -> None:
    assert FORM.to_dict() == {
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
    assert report_from_dict({"kind": "formed", "formation": 3, "n": 17, "mood": "good"}) == messages.Formed(3)


def test_fields_with_defaults_may_be_missing() -> None:
    assert report_from_dict({"kind": "done", "step": 3}) == Done(3)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "unknown kind None"),
        ({"kind": "dance"}, "unknown kind 'dance'"),
        ({"kind": ["formed"]}, "unknown kind"),
        ({"kind": "form"}, "unknown kind 'form'"),
        ({"kind": "formed"}, "report formed: formation is missing"),
        ({"kind": "formed", "formation": "3"}, "report formed: formation must be int, not '3'"),
        ({"kind": "formed", "formation": True}, "formation must be int, not True"),
        ({"kind": "warm", "fingerprint": []}, "fingerprint must be"),
        ({"kind": "ended", "step": 1, "done": 1}, "done must be bool"),
        ({"kind": "progress", "step": 1, "epoch": 0, "loss": []}, "loss must be"),
    ],
)
def test_what_is_no_report_is_refused_by_name(content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        report_from_dict(content)


@pytest.mark.parametrize("field", [{"members": ["x"]}, {"members": [None]}, {"sources": {"x": 1}}, {"sources": [1]}])
def test_what_is_no_order_is_refused_by_name(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"order form: {next(iter(field))} must be"):
        order_from_dict({**FORM.to_dict(), **field})


def test_what_ranks_import_is_light() -> None:
    program = (
        "import sys, elastic_launcher.control, elastic_launcher.control.messages\n"
        "print([name for name in ('asyncio', 'aiohttp', 'http.client', 'torch', 'requests') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
