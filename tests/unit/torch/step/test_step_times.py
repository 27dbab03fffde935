"""Steps are timed on each rank, and rank 0 reports what is new."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.adaptive.noise import NoiseAverages
from elastic_launcher.control.messages import StepTimes
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.step import step_times
from elastic_launcher.torch.step.step_times import FEWEST_STEPS, TimeReports, time_step
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

BATCH, MOST = 8, 64


class Recorder:
    """Stands for the connection to the coordinator: keeps what is reported."""

    def __init__(self, job: Job) -> None:
        self.found: list[Any] = []
        self.reports = self
        job._session.member = self  # type: ignore[assignment]

    def put(self, report: Any) -> None:
        self.found.append(report)


def timed(job: Job, steps: int, size: int = BATCH, ranks: int = 1, samples: int | None = None) -> None:
    for _ in range(steps):
        job._session.pace.steady = (0.1, 0.08)
        time_step(job._session, size, size if samples is None else samples, ranks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(step_times.time, "monotonic", lambda: now[0])
    return now


def test_what_was_timed_is_reported_once_and_again_when_there_is_more(clock: list[float]) -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, 4)
        told, reports = Recorder(job), TimeReports(job._session)
        timed(job, FEWEST_STEPS)
        reports.report()
        assert told.found == []  # at most one a second
        clock[0] = 1.0
        reports.report()
        bounds = {"base_batch_size": BATCH, "max_batch_size": BATCH, "max_micro_batch": 4, "min_micro_batch": 1}
        bounds |= {"accumulation": True, "batch_statistics": False, "virtual_ranks": 0, "epoch_samples": 0}
        assert told.found == [StepTimes(0, BATCH, ((1, 1, 4, 2, 0.1, 0.04, FEWEST_STEPS),), bounds)]
        timed(job, 1)
        clock[0] = 3.0
        reports.report()
        assert len(told.found) == 1  # the same configuration: every five seconds
        clock[0] = 6.0
        reports.report()
        assert [one.times[0][-1] for one in told.found] == [FEWEST_STEPS, FEWEST_STEPS + 1]
        reports.report(at_end=True)
        assert len(told.found) == 2

    run_ranks(1, body)


def test_a_deterministic_job_is_timed_by_the_micro_batches_of_its_virtual_ranks() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, 9, 4, virtual_ranks=2)
        timed(job, FEWEST_STEPS, size=9)
        (found,) = job._session.times
        assert (found.micro_batch, found.accumulation) == (4, 3)  # 3 + 2 of one virtual rank, 4 of the other
        assert step_times.known_bounds(job._session).virtual_ranks == 2

    run_ranks(1, body)


def test_another_configuration_is_reported_soon_and_alone(clock: list[float]) -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        told, reports = Recorder(job), TimeReports(job._session)
        timed(job, FEWEST_STEPS)
        clock[0] = 1.0
        reports.report()
        timed(job, FEWEST_STEPS, ranks=2)
        timed(job, FEWEST_STEPS - 1, ranks=4)
        clock[0] = 2.0
        reports.report()
        assert [row[1] for row in told.found[-1].times] == [2]

    run_ranks(1, body)


def test_steps_with_fewer_samples_are_not_timed() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, BATCH, BATCH)
        timed(job, 5, samples=BATCH - 1)
        job._session.pace.steady = None  # the first step of a generation
        time_step(job._session, BATCH, BATCH, 1)
        assert not job._session.times

    run_ranks(1, body)


def test_rank_0_alone_reports(clock: list[float]) -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, BATCH, BATCH)
        told, reports = Recorder(job), TimeReports(job._session)
        timed(job, FEWEST_STEPS, ranks=2)
        reports.report(at_end=True)
        return len(told.found)

    assert run_ranks(2, body) == [1, 0]


@pytest.mark.parametrize(("weight", "known"), [(1.0, True), (0.01, False)])
def test_an_adaptive_job_reports_bounds_and_noise(weight: float, known: bool) -> None:
    def body(group: ThreadGroup) -> StepTimes:
        job = thread_job(group, BATCH, MOST)
        model = nn.Linear(2, 1)
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        job.dataloader(TensorDataset(torch.zeros(MOST, 2))).autoscale_batch_size(MOST, (2, 32), False)
        meter = job._session.measure_noise()
        meter.follow()
        numbers = [weight, 1000.0 * weight, weight]
        meter.load_state_dict({**meter.state_dict(), "now": {"averages": numbers, "pending": None}})
        assert meter.averages == NoiseAverages.from_numbers(numbers)
        told, reports = Recorder(job), TimeReports(job._session)
        timed(job, FEWEST_STEPS)
        reports.report(at_end=True)
        found: StepTimes = told.found[0]
        return found

    (found,) = run_ranks(1, body)
    assert found.bounds == {
        "base_batch_size": BATCH,
        "max_batch_size": MOST,
        "max_micro_batch": 32,
        "min_micro_batch": 2,
        "accumulation": False,
        "batch_statistics": False,
        "virtual_ranks": 0,
        "epoch_samples": MOST,
    }
    assert found.noise == ((pytest.approx(125.0), pytest.approx(1.0)) if known else None)


def test_a_configuration_that_is_timed_too_rarely_makes_no_report_a_second(clock: list[float]) -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, BATCH, 4)
        told, reports = Recorder(job), TimeReports(job._session)
        timed(job, FEWEST_STEPS - 1, ranks=2)
        for second in range(1, 61):
            timed(job, FEWEST_STEPS)
            clock[0] = float(second)
            reports.report()
        return len(told.found)

    assert run_ranks(1, body) == [1 + 59 // 5]
