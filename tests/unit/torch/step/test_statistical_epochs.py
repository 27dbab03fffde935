"""`job.epochs` counts statistical epochs where the batch adapts, and ends with the same step on all ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import Dataset

from elastic_launcher.adaptive.progress import PhaseProgress, Progress
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.reconfigure.join_point import JoinPoint
from elastic_launcher.torch.statistical_epochs import begin_counting, end_within, expected_steps, phase_epochs
from tests.support.scripts.scripted_policy import ScriptedPolicy
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import SAMPLES, SEED, X, Y, linear

FIRST, MICRO = 7, 8


class Numbered(Dataset[Any]):
    """Samples with their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, X[index], Y[index]


class Trained:
    """A script with an adaptive batch, and what its steps used.

    Attributes:
        used: The samples of this rank in each step, by epoch as `job.epochs` gave it.
    """

    def __init__(
        self,
        group: ThreadGroup,
        sizes: Mapping[int, int],
        gain: Callable[[int], float] = lambda size: 1.0,
        drop_last: bool = False,
    ) -> None:
        self.job = thread_job(group, FIRST, MICRO)
        model = linear()
        self.model, self.optimizer = self.job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.loader: ElasticLoader = self.job.dataloader(Numbered(), shuffle=True, seed=SEED, drop_last=drop_last)
        self.loader.autoscale_batch_size(SAMPLES)
        session = self.job._session
        assert session.autoscaling is not None
        session.autoscaling.policy = ScriptedPolicy(sizes)
        noise = session.measure_noise()
        noise.hold_gains = lambda step, batch_size: noise.gains.update(  # type: ignore[method-assign]
            {step: (gain(batch_size),)}
        )
        self.used: list[list[int]] = []

    def step(self, batch: Any) -> None:
        numbers, x, y = batch
        self.job.backward(functional.cross_entropy(self.model(x), y))
        self.optimizer.step()
        self.used[-1] += numbers.tolist() if self.job.samples else []

    def epochs(self, total: int) -> None:
        for _ in self.job.epochs(total):
            self.used.append([])
            for batch in self.loader:
                self.step(batch)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_passes_follow_each_other_until_the_statistical_epochs_are_done(world_size: int) -> None:
    """With three times the batch and no gain a sample counts a third: 7 samples, and 3 times 93 of the others."""

    def body(group: ThreadGroup) -> tuple[list[list[int]], float, int]:
        script = Trained(group, {0: 21})
        script.epochs(2)
        return script.used, script.job.statistical_epoch, script.job.step

    found = run_ranks(world_size, body)
    passes = [[number for used in ranks for number in used] for ranks in zip(*(one[0] for one in found), strict=True)]
    assert all(sorted(used) == list(range(SAMPLES)) for used in passes[:-1])
    assert len(set(passes[-1])) == len(passes[-1]) < SAMPLES  # it ends inside of a pass
    worth = 7 + (sum(map(len, passes)) - 7) / 3
    assert 2 * SAMPLES <= worth < 2 * SAMPLES + 7
    assert len({one[1:] for one in found}) == 1  # bit by bit
    assert found[0][1] == pytest.approx(worth / SAMPLES)


@pytest.mark.parametrize("size", [7, 14, 49])
def test_samples_that_are_worth_as_much_as_in_the_first_batch_make_as_many_passes(size: int) -> None:
    def body(group: ThreadGroup) -> list[int]:
        script = Trained(group, {0: size}, lambda size: size / FIRST)
        script.epochs(3)
        return [len(used) for used in script.used]

    assert run_ranks(1, body) == [[SAMPLES] * 3]


@pytest.mark.parametrize("adaptive", [True, False])
def test_epochs_without_a_training_loop_are_as_many_as_with_a_fixed_batch(adaptive: bool) -> None:
    def body(group: ThreadGroup) -> tuple[list[int], list[int], int]:
        script = Trained(group, {})
        if not adaptive:
            script.job._session.autoscaling = None
        script.used.append([])
        seen = []
        for epoch in script.job.epochs(4):
            seen.append(epoch)
            assert len(seen) < 10
            if epoch == 1:
                next(iter(script.loader))  # a look at a batch is no loop
            elif epoch > 1:
                for batch in script.loader:
                    script.step(batch)
        empty = list(itertools.islice(script.job.epochs(2), 10))
        return seen, empty, script.job.step

    assert run_ranks(2, body) == [([0, 1, 2, 3], [0, 1], 2 * math.ceil(SAMPLES / FIRST))] * 2


def test_a_stop_before_a_break_counts_no_more_than_what_was_trained() -> None:
    def body(group: ThreadGroup) -> float:
        script = Trained(group, {})
        for _ in script.job.epochs(3):
            script.used.append([])
            for number, batch in enumerate(script.loader):
                script.step(batch)
                if number == 1:
                    script.job.stop("enough")
                    break
        return script.job.statistical_epoch

    assert run_ranks(1, body) == [pytest.approx(2 * FIRST / SAMPLES)]


def test_each_phase_counts_for_itself() -> None:
    def body(group: ThreadGroup) -> tuple[list[int], list[float]]:
        script, epochs = Trained(group, {9: 14}), list[float]()
        for total in (1, 2):
            script.epochs(total)
            epochs.append(script.job.statistical_epoch)
        return [len(used) for used in script.used], epochs

    assert run_ranks(1, body) == [([SAMPLES, SAMPLES, SAMPLES, SAMPLES, 42], [1.0, 2.06])]


@pytest.mark.parametrize("adaptive", [True, False])
def test_epochs_that_the_script_ends_early_or_gives_two_loops_are_as_many_as_with_a_fixed_batch(adaptive: bool) -> None:
    def body(group: ThreadGroup) -> list[list[int]]:
        script = Trained(group, {})
        if not adaptive:
            script.job._session.autoscaling = None
        found = []
        for epoch in script.job.epochs(4):
            lengths = []
            for _ in range(1 + (epoch == 1)):
                script.used.append([])
                for number, batch in enumerate(script.loader):
                    script.step(batch)
                    if epoch == 2 and number == 1:
                        break
                lengths.append(len(script.used[-1]))
            found.append(lengths)
        return found

    assert run_ranks(2, body) == [[[29], [29, 29], [8], [29]], [[21], [21, 21], [6], [21]]]


@pytest.mark.parametrize("drop_last", [False, True])
def test_while_the_batch_stays_the_expected_steps_are_those_of_the_passes(drop_last: bool) -> None:
    def body(group: ThreadGroup) -> set[int | None]:
        script, found = Trained(group, {}, drop_last=drop_last), set()
        session = script.job._session
        for _ in script.job.epochs(3):
            script.used.append([])
            for batch in script.loader:
                whole = session.data_pass(script.loader, session.position)
                found.add(expected_steps(session, whole))
                script.step(batch)
        assert found == {script.job.step}
        return found

    assert run_ranks(1, body) == [{3 * (SAMPLES // FIRST if drop_last else math.ceil(SAMPLES / FIRST))}]


def test_the_step_after_the_last_one_is_known_not_to_come() -> None:
    """Nobody joins in it, and nothing is loaded for it."""

    def body(group: ThreadGroup) -> list[tuple[int, bool, int]]:
        script, found = Trained(group, {0: 28}), []
        session, formation = script.job._session, SimpleNamespace(number=1)
        point = JoinPoint(session)
        for _ in script.job.epochs(1):
            script.used.append([])
            for batch in script.loader:
                if session.micro is not None and session.micro.last:
                    whole, step = session.data_pass(script.loader, session.position), session.position.step
                    point._meets[1] = point._meeting(script.loader)
                    found.append((step, point.is_next(formation), end_within(session, whole, step + 9)))  # type: ignore[arg-type]
                script.step(batch)
        assert found[-1][0] + 1 == script.job.step
        return found

    (found,) = run_ranks(1, body)
    last = found[-1][0]
    assert [is_next for step, is_next, _ in found if step > 4] == [True] * (last - 5) + [False]
    assert all(end == min(last + 1, step + 9) for step, _, end in found if step > 0)


def test_steps_of_a_checkpoint_of_a_fixed_batch_count_as_passes() -> None:
    def body(group: ThreadGroup) -> list[float]:
        session, found = Trained(group, {}).job._session, []
        session.epochs = 5
        for phase, epoch, loop, in_epoch in ((0, 2, 0, 3), (1, 0, 0, 8), (2, 1, 1, 4)):
            noise = session.measure_noise()
            noise.load_state_dict({})
            session.move_to(session.position.at(phase, epoch, loop))
            session.move_to(replace(session.position, step=100, step_in_epoch=in_epoch, samples=900))
            begin_counting(session)
            assert (noise.progress.samples, noise.counted) == (900.0, 100)
            found.append(phase_epochs(session))
        return found

    assert run_ranks(1, body) == [[2 + 21 / SAMPLES, 1.0, 2.0]]


def test_progress_travels_and_follows_a_data_set_that_has_grown() -> None:
    def body(group: ThreadGroup) -> PhaseProgress:
        one, other = (Trained(group, {3: 14}).job._session.measure_noise() for _ in range(2))
        one.phase = PhaseProgress(3, 40, Progress(60.0), 1)
        other.load_state_dict(one.state_dict())
        assert other.phase == one.phase
        return other.phase.resized(100)

    assert run_ranks(1, body) == [PhaseProgress(3, 100, Progress(150.0), 1)]


def test_what_the_epochs_are_is_said_once_in_a_phase(capfd: pytest.CaptureFixture[str]) -> None:
    def body(group: ThreadGroup) -> Job:
        script = Trained(group, {})
        script.epochs(2)
        script.epochs(3)
        return script.job

    run_ranks(2, body)
    told = [line for line in capfd.readouterr().err.splitlines() if "statistical epochs" in line]
    assert [line.split(": ")[1] for line in told] == ["the global batch adapts, from 7 to 50 samples"] * 2
    assert ["job.epochs(2)" in told[0], "job.epochs(3)" in told[1]] == [True, True]
