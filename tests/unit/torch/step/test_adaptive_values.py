"""The values of an adaptive batch, as progress reports and TensorBoard have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from elastic_launcher.torch.step.adaptive_values import adaptive_values
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

BATCH, MOST = 8, 64
KNOWN = [1.0, 125.0, 1.0]  # signal, noise and weight: a noise scale of 125 samples


class Writer:
    """Records scalars, as TensorBoard's ``SummaryWriter`` takes them."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, int | None]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.found[tag] = scalar_value, global_step


def adaptive(group: ThreadGroup, noise: list[float] | None = None, batch: int = BATCH) -> Job:
    job = thread_job(group, BATCH, MOST)
    model = nn.Linear(2, 1)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job.dataloader(TensorDataset(torch.zeros(MOST, 2))).autoscale_batch_size(MOST)
    meter = job._session.measure_noise()
    meter.follow()
    if noise is not None:
        meter.load_state_dict({**meter.state_dict(), "now": {"averages": noise, "pending": None}})
    if batch != BATCH:
        job._session.schedule = job._session.schedule.with_entry(1, batch)
        job._session.noise.hold_gains(1, batch)  # type: ignore[union-attr]
        job._session.move_to(job._session.position.after_step(BATCH))
    return job


def values(noise: list[float] | None = None, batch: int = BATCH) -> dict[str, float]:
    (found,) = run_ranks(1, lambda group: adaptive_values(adaptive(group, noise, batch)._session))
    return dict(found)


def test_a_fixed_batch_has_none() -> None:
    assert run_ranks(1, lambda group: adaptive_values(thread_job(group, BATCH, MOST)._session)) == [{}]


def test_before_the_noise_is_known_there_is_the_batch_alone() -> None:
    assert values() == values([0.01, 1.25, 0.01]) == {"batch": BATCH, "lr_factor": 1.0}


def test_the_first_batch_has_the_learning_rates_of_the_script_and_full_efficiency() -> None:
    found = values(KNOWN)
    assert found == {"batch": BATCH, "lr_factor": 1.0, "noise_scale": pytest.approx(125.0), "efficiency": 1.0}


def test_of_a_larger_batch_a_sample_is_worth_less() -> None:
    noise, scale = 125.0 / BATCH, 4
    gain = (noise + 1) / (noise / scale + 1)
    found = values(KNOWN, scale * BATCH)
    assert found == {
        "batch": scale * BATCH,
        "lr_factor": pytest.approx(gain),
        "noise_scale": pytest.approx(125.0),
        "efficiency": pytest.approx(gain / scale),
    }


def test_a_noise_scale_without_bound_is_left_out() -> None:
    assert sorted(values([0.0, 1.0, 1.0])) == ["batch", "efficiency", "lr_factor"]


def test_a_summary_writer_gets_scalars_from_rank_0() -> None:
    def body(group: ThreadGroup) -> Any:
        job, writer = adaptive(group, KNOWN, 32), Writer()
        job.to_tensorboard(writer, tag_prefix="adaptive/")
        job.to_tensorboard(writer, 700)
        return job.gain, writer.found

    (gain, found), (_, other) = run_ranks(2, body)
    names = {"batch", "lr_factor", "noise_scale", "efficiency", "gain", "statistical_epoch"}
    assert set(found) == names | {f"adaptive/{name}" for name in names} and other == {}
    assert (found["batch"], found["adaptive/batch"]) == ((32, 700), (32, 1))
    assert found["gain"] == (gain, 700) and gain > 1


def test_with_a_fixed_batch_nothing_is_written() -> None:
    def body(group: ThreadGroup) -> Any:
        writer = Writer()
        thread_job(group, BATCH, MOST).to_tensorboard(writer, 1)
        return writer.found

    assert run_ranks(1, body) == [{}]
