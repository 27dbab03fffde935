"""What members tell a coordinator that has come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Form, Progress, StepFailed, Warm, decode, encode
from elastic_launcher.torch.membership.rejoin_state import RejoinState
from tests.support.message_examples import FORM, FULL


@pytest.mark.parametrize("introduction", [FULL, Introduction(7)])
def test_it_is_read_as_it_was_written(introduction: Introduction) -> None:
    assert decode(json.loads(json.dumps(encode(introduction))), Introduction, "it") == introduction


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pid": "7"}, r"introduction: Expected `int`, got `str` - at `\$.pid`"),
        ({"step": True}, r"introduction: Expected `int`, got `bool` - at `\$.step`"),
        ({"pending": {}}, r"introduction: Expected `array`, got `object` - at `\$.pending`"),
        ({"current": {"kind": "abandon", "formation": 1}}, r"Invalid value 'abandon' - at `\$.current.kind`"),
        ({"current": 3}, r"introduction: Expected `object \| null`, got `int` - at `\$.current`"),
        ({"reports": [{"kind": "dance"}]}, r"Invalid value 'dance' - at `\$.reports\[0\].kind`"),
    ],
)
def test_what_is_none_is_refused_with_a_reason(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decode(encode(FULL) | change, Introduction, "introduction")


def order(number: int) -> Form:
    return replace(FORM, formation=number)


def test_an_account_keeps_what_still_holds() -> None:
    rejoin_state = RejoinState()
    rejoin_state.where = lambda: Introduction(7, 40, 1, 960, phase=2, sums={"1.end.1": 3})
    rejoin_state.note_report(Warm({"dataset": 9}))
    rejoin_state.note_order(order(1))
    rejoin_state.note_standing(1)
    rejoin_state.note_taken(1)
    rejoin_state.note_report(Progress(3, 0))
    rejoin_state.note_report(StepFailed(1, 5, "reset"))
    for number in (2, 3, 4):
        rejoin_state.note_order(order(number))
    rejoin_state.note_standing(2)
    rejoin_state.note_given_up(1)  # its own: it waits in it to be formed again
    rejoin_state.note_given_up(3)
    rejoin_state.note_report(Warm())
    told = rejoin_state.introduction()
    assert (told.step, told.epoch, told.samples, told.highest) == (40, 1, 960, 4)
    assert (told.phase, told.sums) == (2, {"1.end.1": 3})
    assert told.current is not None and told.current.formation == 1
    assert [form.formation for form in told.pending] == [2, 4] and told.standing == (2,)
    assert [type(report) for report in told.reports] == [Warm, StepFailed]
    assert told.reports[0] == Warm({"dataset": 9})
    rejoin_state.note_taken(4)
    rejoin_state.halting = True
    told = rejoin_state.introduction()
    assert told.current is not None and told.current.formation == 4
    assert (told.pending, told.standing, told.halting) == ((), (), True)
    assert [type(report) for report in told.reports] == [Warm], "what broke is mended"


def test_a_joiner_that_gives_up_what_it_had_taken_has_no_place() -> None:
    rejoin_state = RejoinState()
    rejoin_state.note_order(order(1))
    rejoin_state.note_taken(1)
    rejoin_state.note_given_up(1, left=True)
    told = rejoin_state.introduction()
    assert (told.current, told.pending, told.highest) == (None, (), 1)
