"""The policy of an adaptive batch measures steps, and proposes the batch of most goodput."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.adaptive.decision import BatchChange
from elastic_launcher.adaptive.fit import Fit
from elastic_launcher.adaptive.noise import NoiseAverages
from elastic_launcher.adaptive.observations import Observations
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.step import goodput_policy
from elastic_launcher.torch.step.goodput_policy import FEWEST_STEPS, GoodputPolicy
from elastic_launcher.torch.step.step_times import time_step
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

FIRST, MOST = 8, 64
NOISY = [1.0, 1000.0, 1.0]  # a noise scale of a thousand samples, known for certain
CALM = [1.0, 0.01, 1.0]


@pytest.fixture(autouse=True)
def no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput_policy, "INTERVAL", 0.0)
    monkeypatch.setattr(goodput_policy, "MOST_INTERVAL", 0.0)


def adaptive(group: ThreadGroup, noise: list[float]) -> tuple[Job, GoodputPolicy]:
    job = thread_job(group, FIRST, MOST)
    model = nn.Linear(2, 1)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.dataloader(TensorDataset(torch.zeros(MOST, 2))).autoscale_batch_size(MOST)
    meter, autoscaling = job._session.measure_noise(), job._session.autoscaling
    assert autoscaling is not None and isinstance(autoscaling.policy, GoodputPolicy)
    meter.follow()
    meter.load_state_dict({**meter.state_dict(), "now": {"averages": noise, "pending": None}})
    assert meter.averages == NoiseAverages.from_numbers(noise)
    return job, autoscaling.policy


def note(job: Job, policy: GoodputPolicy, steps: int, size: int = FIRST, **more: Any) -> None:
    """Notes steps that take as long whatever their batch is, which makes large ones worthwhile."""
    for _ in range(steps):
        job._session.pace.steady = more.get("seconds", (0.1, 0.09))
        time_step(job._session, size, more.get("samples", size), more.get("ranks", 1))
        policy.note_step(size, more.get("samples", size), more.get("ranks", 1))


def decided(policy: GoodputPolicy, size: int = FIRST, ranks: int = 1) -> BatchChange | None:
    """Returns what comes of being asked twice, the decision between them."""
    assert policy.propose(0, size, ranks) is None
    if policy._thread is not None:
        policy._thread.join()
    return policy.propose(0, size, ranks)


def on_one_rank(body: Any) -> None:
    run_ranks(1, body)


def test_a_larger_batch_is_proposed_where_gradients_are_noise_and_steps_cost_the_same() -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, FEWEST_STEPS)
        change = decided(policy)
        assert change is not None and change.old == FIRST and FIRST < change.new <= MOST
        assert change.noise_scale == pytest.approx(1000) and "goodput" in change.reason
        assert policy.propose(0, FIRST, 1) is None  # a decision is proposed once

    on_one_rank(body)


def test_the_batch_stays_where_a_larger_one_gains_nothing() -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, CALM)
        note(job, policy, FEWEST_STEPS)
        assert decided(policy) is None and policy._thread is not None

    on_one_rank(body)


@pytest.mark.parametrize("more", [{"seconds": None}, {"samples": FIRST - 1}, {"size": 9}, {"ranks": 2}], ids=str)
def test_steps_that_say_nothing_of_this_batch_on_these_ranks_do_not_count(more: Any) -> None:
    """Those after a change of the ranks, an epoch's last one, those of another batch, those on other ranks."""

    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, 5 * FEWEST_STEPS, **more)
        assert decided(policy) is None and policy._thread is None
        note(job, policy, FEWEST_STEPS - 1)
        assert decided(policy) is None and policy._thread is None

    on_one_rank(body)


def test_nothing_is_decided_before_the_noise_is_known() -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, [0.01, 10.0, 0.01])  # of ten steps of the first batch
        note(job, policy, FEWEST_STEPS)
        assert decided(policy) is None and policy._thread is None

    on_one_rank(body)


def test_a_decision_waits_until_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, FEWEST_STEPS)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", no_thread)
            assert decided(policy) is None
        assert decided(policy) is not None

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    on_one_rank(body)


def test_a_decision_that_can_not_be_made_is_told_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def no_fit(observations: Observations) -> Fit:
        tries.append(observations)
        raise MemoryError("no room")

    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, FEWEST_STEPS)
        with monkeypatch.context() as full, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            full.setattr(goodput_policy, "fit", no_fit)
            assert decided(policy) is None and decided(policy) is None
        assert len(tries) > 1
        assert [str(one.message) for one in told] == [
            "the global batch stays 8 for now: no other one can be found (MemoryError: no room). It is tried again"
        ]
        assert decided(policy) is not None

    on_one_rank(body)


def test_a_decision_for_other_ranks_is_dropped() -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, FEWEST_STEPS)
        assert policy.propose(0, FIRST, 1) is None and policy._thread is not None
        policy._thread.join()
        assert policy._answer is not None
        assert policy.propose(1, FIRST, 3) is None and policy._answer is None

    on_one_rank(body)


def test_a_decision_is_dropped_once_another_batch_has_held() -> None:
    def body(group: ThreadGroup) -> None:
        job, policy = adaptive(group, NOISY)
        note(job, policy, FEWEST_STEPS)
        assert policy.propose(0, FIRST, 1) is None and policy._thread is not None
        policy._thread.join()
        note(job, policy, 1, size=2 * FIRST)
        note(job, policy, 1)
        assert policy._answer is not None
        assert policy.propose(1, FIRST, 1) is None and policy._answer is None

    on_one_rank(body)


def test_scipy_is_asked_for_by_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)

    def body(group: ThreadGroup) -> None:
        with pytest.raises(ImportError, match=r"autoscale_batch_size\(\) needs scipy: pip install 'elastic-launcher\["):
            adaptive(group, NOISY)

    on_one_rank(body)
