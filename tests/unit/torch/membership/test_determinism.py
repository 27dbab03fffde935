"""What `elastic.init(deterministic=...)` turns on, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_launcher.torch.init import init
from elastic_launcher.torch.membership.determinism import be_deterministic, surroundings
from elastic_launcher.torch.reconfigure.fingerprint import fingerprint
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from tests.support.thread_group import CPU, run_ranks, thread_job

TURNED_ON = """
import os, torch
import elastic_launcher.torch as elastic
job = elastic.init(8, 2, deterministic=3)
assert torch.are_deterministic_algorithms_enabled()
assert not torch.backends.cudnn.benchmark
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
assert [one.micro_batches for one in job.plan.shares] == [(2, 1, 2, 1, 2)]
"""


def test_it_turns_on_the_deterministic_algorithms_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", TURNED_ON], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_workspace_with_which_cublas_is_not_deterministic_is_refused() -> None:
    with pytest.raises(ValueError, match="CUBLAS_WORKSPACE_CONFIG is ':0:0'"):
        be_deterministic({"CUBLAS_WORKSPACE_CONFIG": ":0:0"})
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_the_number_of_virtual_ranks_is_a_whole_one(number: int) -> None:
    with pytest.raises(ValueError, match="deterministic is"):
        init(8, 2, deterministic=number)


def test_micro_batches_that_are_found_by_trying_are_refused() -> None:
    with pytest.raises(ValueError, match='max_batch_per_gpu is "auto"'):
        init(8, "auto", deterministic=2)


def test_ranks_compare_what_bits_depend_on() -> None:
    def body(group: object, virtual_ranks: int) -> dict[str, object]:
        job = thread_job(group, 8, 2, virtual_ranks=virtual_ranks)  # type: ignore[arg-type]
        return dict(fingerprint(job._session, job.dataloader(TensorDataset(torch.zeros(9)))))

    without, own = (run_ranks(1, lambda group, n=n: body(group, n))[0] for n in (0, 3))
    assert {name: value for name, value in own.items() if name not in without} == {
        "virtual ranks (deterministic=)": 3,
        "torch version": torch.__version__,
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "CPU threads of torch (OMP_NUM_THREADS)": torch.get_num_threads(),
    }
    assert surroundings(CPU).items() <= own.items()


def state(**arithmetic: int) -> TrainingState:
    return TrainingState([nn.Linear(2, 2)], arithmetic=dict(arithmetic))


def test_the_state_of_another_arithmetic_is_refused() -> None:
    captured = state(ranks=4).capture()
    assert len(state(ranks=4).targets(captured.header)) == 2
    with pytest.raises(StateMismatch, match=r"deterministic= \(ranks 2\), and the checkpoint with ranks 4"):
        state(ranks=2).targets(captured.header, sender="the checkpoint")
    with pytest.raises(StateMismatch, match="with ranks as they were"):
        state(ranks=2).targets(state().capture().header)
    assert len(state().targets(captured.header)) == 2  # a job that promises nothing takes any
