"""A rank's progress is judged inside its steps only, and its own time leaves its waiting out."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import pytest
import torch
from torch import nn

from elastic_launcher.torch.membership import step_timer as pace_module
from elastic_launcher.torch.membership.step_timer import LONG_WORK, StepTimer, compiles, own_collective


class Clock:
    """A monotonic clock that goes on by the test's word."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pace_module, "time", found)
    return found


def step(pace: StepTimer, clock: Clock, work: float = 0.3, wait: float = 0.7, sizes: tuple[int, ...] = (4, 4)) -> None:
    pace.begin_work(sizes)
    clock.now += work
    with pace.waiting("job.backward"):
        clock.now += wait
    pace.tick(sum(sizes))


def settled(clock: Clock) -> StepTimer:
    pace = StepTimer()
    for _ in range(3):
        step(pace, clock)
    return pace


def test_a_step_is_judged_from_its_beginning_to_the_reduction(clock: Clock) -> None:
    pace = settled(clock)
    pace.begin_work((4, 4))
    work = pace.vitals().work
    assert work
    clock.now += 3
    assert pace.vitals().work == work
    with pace.waiting("job.backward"):
        clock.now += 2
        assert (pace.vitals().work, pace.vitals().waits) == (0, 2)
    assert (pace.vitals().work, pace.vitals().waits) == (0, 0)
    pace.tick(8)
    pace.begin_work((4, 4))
    assert pace.vitals().work > work


def test_each_wait_has_a_number_of_its_own_and_says_in_which_operation_it_is(clock: Clock) -> None:
    pace = settled(clock)
    seen = []
    for what, meets in (("in job.backward", ""), ("in job.stop", "job.backward"), ("in the forming", None)):
        pace.begin_work((4, 4), 21)
        with pace.waiting(what, meets=meets):
            clock.now += 2
            found = pace.vitals()
            seen.append((found.turn, found.doing, found.meets, found.waits, found.busy))
    assert seen == [
        (4, "in job.backward", "", 2, 2),
        (5, "in job.stop", "job.backward", 2, 2),
        (0, "in the forming", "", 2, 2),
    ]
    assert (pace.vitals().turn, pace.vitals().meets) == (0, "")
    assert pace.vitals().doing == "in the loop body of step 21"
    pace.end_loop()
    assert pace.vitals().doing == "in its code outside the training loop"


def test_a_step_is_late_by_what_its_samples_do_not_explain(clock: Clock) -> None:
    def late(pace: StepTimer, seconds: float, samples: int) -> float:
        clock.now += seconds
        pace.tick(samples)
        return round(pace.late(), 6)

    fresh = StepTimer()
    assert [late(fresh, 5, 8), late(fresh, 5, 8)] == [0, 0], "nothing to compare with"
    for samples, seconds, over in (
        (8, 1, 0),
        (8, 1.5, 0.5),
        (16, 2, 0),
        (24, 3.25, 0.25),
        (4, 0.6, 0.1),
        (0, 1.5, 0.5),
    ):
        assert late(settled(clock), seconds, samples) == over, samples
    idle = StepTimer()  # more ranks than samples
    for _ in range(3):
        late(idle, 1, 0)
    assert late(idle, 1.75, 8) == 0.75


def test_the_first_step_another_generation_another_size_and_an_evaluation_are_not_judged(clock: Clock) -> None:
    fresh = StepTimer()
    fresh.begin_work((4, 4))
    assert not fresh.vitals().work
    pace = settled(clock)
    pace.begin_work((4, 3))
    assert not pace.vitals().work
    pace.renew()
    pace.begin_work((4, 4))
    assert not pace.vitals().work
    pace = settled(clock)
    pace.begin_work((4, 4))
    with pace.aside("job.evaluate"):
        assert not pace.vitals().work
    assert not pace.vitals().work


def test_its_own_time_leaves_its_waiting_out(clock: Clock) -> None:
    pace = settled(clock)
    found = pace.vitals()
    assert found.usual == pytest.approx(1.0)
    assert (found.own, found.per_sample, found.steps) == (pytest.approx(0.3), pytest.approx(0.3 / 8), 2)
    clock.now += 5
    assert pace.vitals().since == pytest.approx(5)
    pace.renew()
    assert pace.vitals().steps == 0


def test_a_compile_is_seen_while_it_lasts() -> None:
    seen = []

    def backend(graph: Any, inputs: list[torch.Tensor]) -> Any:
        seen.append(compiles([sys._getframe()]))

        def run(*arguments: torch.Tensor) -> Any:
            seen.append(compiles([sys._getframe()]))
            return graph(*arguments)

        return run

    torch.compile(nn.Linear(2, 2), backend=backend)(torch.ones(1, 2))
    assert seen == [True, False]


def in_collective(name: str, look: Callable[[], None]) -> None:
    """Calls ``look`` from a function of torch's module of collective operations, as it were."""
    names: dict[str, Any] = {}
    exec(compile(f"def {name}(look):\n    look()", "/lib/torch/distributed/distributed_c10d.py", "exec"), names)
    names[name](look)


def test_who_is_in_a_collective_operation_of_the_scripts_own_waits_and_does_not_work(clock: Clock) -> None:
    pace = settled(clock)
    pace.begin_work((4, 4))

    def look() -> None:
        assert pace.vitals().outside == 0, "it has just come to it"
        clock.now += LONG_WORK
        assert pace.vitals().outside == 0, "it is seen there for the first time"
        clock.now += 7
        found = pace.vitals()
        assert (found.outside, found.waits, found.work) == (7, 7, 0)

    in_collective("all_reduce", look)
    found = pace.vitals()
    assert (found.outside, found.waits) == (0, 0) and found.work


def test_who_moves_is_not_looked_at(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may fail over the frames of a thread that runs."""
    looks: list[float] = []
    monkeypatch.setattr(sys, "_current_frames", lambda: looks.append(clock.now) or {})
    pace = settled(clock)
    for _ in range(3):
        clock.now += LONG_WORK - 1
        pace.vitals()
        step(pace, clock)
    with pace.waiting("job.backward"):
        clock.now += 2 * LONG_WORK
        pace.vitals()
    assert looks == []
    pace.vitals()
    assert looks == [clock.now]


def test_a_look_keeps_nothing_alive_of_what_the_script_had(clock: Clock) -> None:
    """Among the variables of a training thread may be a whole layer's weights."""

    def pass_of_a_model() -> weakref.ref[nn.Module]:
        weights = nn.Linear(1, 1)
        looking = threading.Thread(target=pace.vitals)
        looking.start()
        looking.join()
        return weakref.ref(weights)

    pace = settled(clock)
    pace.begin_work([1])
    clock.now += 2 * LONG_WORK
    gc.disable()
    try:
        assert pass_of_a_model()() is None
    finally:
        gc.enable()


def test_what_is_no_frame_any_more_is_in_no_operation() -> None:
    assert own_collective(cast(FrameType, in_collective)) is None and not compiles([cast(FrameType, in_collective)])


def test_another_such_operation_after_a_step_is_another_wait(clock: Clock) -> None:
    pace = settled(clock)
    for _ in range(3):

        def look() -> None:
            clock.now += 5
            assert pace.vitals().outside == 0

        in_collective("barrier", look)
        step(pace, clock)


def test_who_imports_the_module_is_in_no_operation_of_it() -> None:
    found: list[int | None] = []
    names = {"look": lambda: found.append(own_collective(sys._getframe()))}
    exec(compile("look()", "/lib/torch/distributed/distributed_c10d.py", "exec"), names)
    assert found == [None]


def test_a_steady_step_is_timed_from_its_beginning(clock: Clock) -> None:
    """Not in its first step of a generation; and what the script does between two loops is no part of the next one."""
    pace = StepTimer()
    step(pace, clock)
    assert pace.steady is None
    step(pace, clock)
    assert pace.steady == pytest.approx((1.0, 0.3))
    pace.end_loop()
    clock.now += 60  # an evaluation
    step(pace, clock, work=0.5, wait=0.25)
    assert pace.steady == pytest.approx((0.75, 0.5))
    pace.renew()
    step(pace, clock)
    assert pace.steady is None
