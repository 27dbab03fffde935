"""What members tell a coordinator that has come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Active, Form, Warm
from elastic_launcher.torch.membership.rejoin_state import Account

FORM = Form(3, 2, "grow", (1, 2, 4), (4,), (), {4: 1}, "127.0.0.1:29500", 10.0, "hint")
FULL = Introduction(
    1001, 40, 1, 960, FORM, (FORM,), (3,), 3, (Warm({"dataset": 9}), Active(3, 39, 40)), True, 1, {"0.end.1": 2.5}
)


@pytest.mark.parametrize("introduction", [FULL, Introduction(7)])
def test_it_is_read_as_it_was_written(introduction: Introduction) -> None:
    assert Introduction.from_dict(json.loads(json.dumps(introduction.to_dict()))) == introduction


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pid": "7"}, "introduction: pid must be a whole number, not '7'"),
        ({"step": True}, "introduction: step must be a whole number, not True"),
        ({"pending": {}}, "introduction: pending must be a list, not {}"),
        ({"current": {"kind": "abandon", "formation": 1}}, "is no order to form a group"),
        ({"current": 3}, "introduction: 3 is no order"),
        ({"reports": [{"kind": "dance"}]}, "report of unknown kind 'dance'"),
    ],
)
def test_what_is_none_is_refused_with_a_reason(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Introduction.from_dict(FULL.to_dict() | change)


def order(number: int) -> dict[str, Any]:
    return {"seq": number, **FORM.to_dict(), "formation": number}


def test_an_account_keeps_what_still_holds() -> None:
    account = Account()
    account.where = lambda: Introduction(7, 40, 1, 960, phase=2, sums={"1.end.1": 3})
    account.note_report({"kind": "warm", "fingerprint": {"dataset": 9}})
    account.note_order(order(1))
    account.note_standing(1)
    account.note_taken(1)
    account.note_report({"kind": "progress", "step": 3, "epoch": 0})
    account.note_report({"kind": "step_failed", "formation": 1, "step": 5, "error": "reset"})
    for number in (2, 3, 4):
        account.note_order(order(number))
    account.note_standing(2)
    account.note_given_up(1)  # its own: it waits in it to be formed anew
    account.note_given_up(3)
    account.note_report({"kind": "warm", "fingerprint": {}})
    told = account.introduction(halting=False)
    assert (told.step, told.epoch, told.samples, told.highest) == (40, 1, 960, 4)
    assert (told.phase, told.sums) == (2, {"1.end.1": 3})
    assert told.current is not None and told.current.formation == 1
    assert [form.formation for form in told.pending] == [2, 4] and told.standing == (2,)
    assert [report.KIND for report in told.reports] == ["warm", "step_failed"]
    assert told.reports[0] == Warm({"dataset": 9})
    account.note_taken(4)
    told = account.introduction(halting=True)
    assert told.current is not None and told.current.formation == 4
    assert (told.pending, told.standing, told.halting) == ((), (), True)
    assert [report.KIND for report in told.reports] == ["warm"], "what broke is mended"


def test_a_joiner_that_gives_up_what_it_had_taken_has_no_place() -> None:
    account = Account()
    account.note_order(order(1))
    account.note_taken(1)
    account.note_given_up(1, left=True)
    told = account.introduction(halting=False)
    assert (told.current, told.pending, told.highest) == (None, (), 1)
