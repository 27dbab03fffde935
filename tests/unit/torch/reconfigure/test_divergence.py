"""Parameters, learning rates and registered numbers that differ between ranks are found at the end of each epoch."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch.job import Job
from elastic_launcher.torch.reconfigure.divergence import Check
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.training_state import TrainingState
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import FEATURES, X, Y

SAMPLES = 32  # four steps an epoch


class Holder:
    """An object of the script's own."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class Counting(nn.Linear):
    """A layer with a parameter that forward passes change."""

    def __init__(self) -> None:
        super().__init__(FEATURES, 3)
        self.passes = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.added = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.data.add_(self.added)
        return super().forward(x)


class Script:
    """Two layers in two groups of an optimizer, and what a test does in each step."""

    def __init__(self, group: ThreadGroup, act: Callable[[Script, int], None] = lambda script, rank: None) -> None:
        self.job: Job = thread_job(group, 8, 8)
        torch.manual_seed(3)
        self.model = nn.Sequential(Counting(), nn.Linear(3, 3)).double()
        groups = [{"params": list(layer.parameters())} for layer in self.model]
        optimizer = torch.optim.AdamW(groups, lr=0.1)
        self.model, self.optimizer = self.job.prepare(self.model, optimizer)
        self.own = Holder(best=0.5, history=[1, 2])
        self.job.register("mine", self.own)
        self.act = act
        self.rank = group.rank

    def train(self, epochs: int, samples: int = SAMPLES) -> int:
        loader = self.job.dataloader(TensorDataset(X[:samples], Y[:samples]))
        for _ in self.job.epochs(epochs):
            for x, y in loader:
                self.job.backward(functional.cross_entropy(self.model(x), y))
                self.optimizer.step()
                if self.job.step == 3:
                    self.act(self, self.rank)
        return self.job.step


def other_rate(script: Script, rank: int) -> None:
    script.optimizer.param_groups[1]["lr"] = torch.tensor(0.25 if rank == 1 else 0.125)


def other_beta(script: Script, rank: int) -> None:
    script.optimizer.param_groups[0]["betas"] = (0.5, 0.75 if rank == 1 else 0.25)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (other_rate, r"optimizer\[0\]\.param_groups\[1\]\.lr is 0\.125 on ranks 0, 2 and 0\.25 on rank 1"),
        (other_beta, r"optimizer\[0\]\.param_groups\[0\]\.betas\[1\] is 0\.25 on ranks 0, 2 and 0\.75 on rank 1"),
    ],
)
def test_an_option_of_a_param_group_that_differs_ends_the_job_with_the_epoch(
    act: Callable[[Script, int], None], said: str
) -> None:
    with pytest.raises(RuntimeError, match=f"not the same on all ranks: {said}. Set them on every rank"):
        run_ranks(3, lambda group: Script(group, act).train(2))


def test_after_the_last_epoch_what_differs_is_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"param_groups\[1\]\.lr is 0\.125 on rank 0 and 0\.25 on rank 1") as warned:
        assert run_ranks(2, lambda group: Script(group, other_rate).train(1)) == [4, 4]
    assert len(warned) == 1


def test_a_number_of_the_script_that_differs_is_warned_of_once() -> None:
    def act(script: Script, rank: int) -> None:
        script.own.values["best"] = script.job.state["best"] = float(rank)

    with pytest.warns(UserWarning, match="numbers of the script are not the same on all ranks") as warned:
        assert run_ranks(3, lambda group: Script(group, act).train(4)) == [16] * 3
    (message,) = {str(one.message) for one in warned}
    assert "registered 'mine'['best'] is 0.0 on rank 0 and 1.0 on rank 1 and 2.0 on rank 2" in message
    assert "job.state['best'] is 0.0 on rank 0" in message and len(warned) == 1


def test_states_of_random_generators_and_equal_numbers_are_no_matter() -> None:
    def act(script: Script, rank: int) -> None:
        drawn = random.Random(rank)
        script.own.values = {"generator": drawn.getstate(), "torch": torch.get_rng_state(), "best": 0.25}
        script.job.state["best"] = float("nan")
        time.sleep(0.01 * rank)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_ranks(3, lambda group: Script(group, act).train(3)) == [12] * 3


def test_a_check_is_of_the_moment_in_which_it_was_taken() -> None:
    """A forward pass may change a parameter right after: an equal one, and the ranks compared different moments."""
    large = nn.ParameterDict({"a": torch.zeros(10_000_000), "moves": torch.zeros(3)}).requires_grad_(False)
    state = TrainingState([large], user={"best": 1.0})
    before = Check(state, ModelBuffers())
    check = Check(state, ModelBuffers())
    large["moves"].add_(1.0)
    state.user["best"] = 2.0
    assert check.rows() == before.rows() and check.combined() == before.combined()
    assert Check(state, ModelBuffers()).combined() != before.combined()


def test_a_parameter_that_forward_passes_change_alike_is_no_error() -> None:
    assert run_ranks(2, lambda group: Script(group).train(3)) == [12, 12]


def test_a_parameter_that_forward_passes_change_on_one_rank_is_named_with_what_to_do() -> None:
    def act(script: Script, rank: int) -> None:
        script.model[0].added = 1.0 + rank

    said = r"0\.passes on rank 1 \(compared with rank 0\).* 0\.passes is not trained .*register it as a buffer"
    with pytest.raises(RuntimeError, match=said):
        run_ranks(2, lambda group: Script(group, act).train(2))


def test_nothing_is_exchanged_for_it_but_in_the_steps() -> None:
    """Three epochs of two steps exchange as much as one of six."""

    def body(group: ThreadGroup, epochs: int) -> list[int]:
        exchanged: list[int] = []
        gather, reduce = group.all_gather_bytes, group.all_reduce
        group.all_gather_bytes = lambda data: (exchanged.append(0), gather(data))[1]  # type: ignore[method-assign]
        group.all_reduce = lambda tensor, op="sum": (exchanged.append(1), reduce(tensor, op))[1]  # type: ignore
        Script(group).train(epochs, 48 // epochs)
        return exchanged

    one, other = (run_ranks(2, lambda group: body(group, epochs)) for epochs in (1, 3))  # noqa: B023
    assert one == other
