"""Step times that rank 0 reports are written down, and those of a member that does not train are not."""

from __future__ import annotations

from elastic_launcher.control.messages import StepTimes
from tests.support.played_job import growing, training

BOUNDS = {"base_batch_size": 8, "max_batch_size": 8, "max_micro_batch": 4, "min_micro_batch": 1, "accumulation": True}
REPORT = StepTimes(9, 8, ((1, 1, 4, 2, 0.1, None, 20),), BOUNDS)


def test_step_times_are_recorded() -> None:
    job = training(2)
    job.report(1, REPORT)
    times = [[1, 1, 4, 2, 0.1, None, 20]]
    (found,) = job.events("step_times")
    assert [list(row) for row in found["times"]] == times
    assert {key: found[key] for key in found if key != "times"} == {"step": 9, "batch": 8, "bounds": BOUNDS}


def test_a_member_that_does_not_train_is_not_listened_to() -> None:
    job = growing(1, 1)
    job.report(2, REPORT)
    assert job.events("step_times") == []
