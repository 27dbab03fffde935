"""What a rank has its workers load as soon as it hears that a peer is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.reconfigure.recovery import Recovery


class Plan:
    """Notes for which division something was to be loaded."""

    def __init__(self) -> None:
        self.asked: list[Division] = []

    def expect(self, division: Division) -> None:
        self.asked.append(division)


def asked(micro: MicroBatch | None, left: tuple[int, ...]) -> list[Division]:
    """Tells member 4 who is left, where it stands in ``micro``."""
    member: Any = SimpleNamespace(number=4)
    session: Any = SimpleNamespace(member=member, micro=micro)
    resizer: Any = None
    plan: Any = Plan()
    Recovery(session, resizer, plan).expect_early(left)
    found: list[Division] = plan.asked
    return found


def test_the_next_try_is_loaded_at_once_where_this_one_needs_nothing_more() -> None:
    assert asked(MicroBatch(4, 8, last=True), (2, 4, 7)) == [Division(1, 3)]


@pytest.mark.parametrize(
    "micro",
    [
        pytest.param(None, id="between two steps"),
        pytest.param(MicroBatch(4, 8, last=False), id="more of this step is still to come from the workers"),
        pytest.param(MicroBatch(4, 8, last=True, synced=True), id="the step is reduced"),
    ],
)
def test_what_this_step_or_the_next_one_needs_is_not_called_off(micro: MicroBatch | None) -> None:
    assert asked(micro, (2, 4, 7)) == []


def test_one_that_is_not_left_loads_nothing() -> None:
    assert asked(MicroBatch(4, 8, last=True), (2, 7)) == []
