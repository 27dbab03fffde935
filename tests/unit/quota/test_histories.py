"""Whatever happens to jobs, GPUs and documents, the quota controller keeps its promises; see `tests.quota_chaos`."""

from __future__ import annotations

import pytest

from tests.quota_chaos.game import Game
from tests.quota_chaos.history import draw
from tests.quota_chaos.pure import PureStage


@pytest.mark.parametrize("seed", [*range(1, 13), 101])
def test_a_history_of_jobs_and_faults_breaks_no_promise(seed: int) -> None:
    assert "acts" in Game(draw(seed), PureStage(), print).play()


def test_a_history_is_the_same_whenever_it_is_drawn() -> None:
    assert draw(7) == draw(7) != draw(8)
