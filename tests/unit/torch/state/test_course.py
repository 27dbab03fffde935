"""A script's phases, epochs and loops: several `job.epochs`, several loops in an epoch, a look at a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_launcher.torch import rng
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.formations import MovedOn
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.state.course import Course, Sums
from elastic_launcher.torch.state.position import Position
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import SEED, X, Y, linear


class Script:
    """A script's parts, and what it has seen."""

    def __init__(self, group: ThreadGroup) -> None:
        self.job: Job = thread_job(group, 8, 4)
        model = linear()
        self.model, self.optimizer = self.job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.steps: list[tuple[int, int]] = []

    def loader(self, samples: int) -> ElasticLoader:
        return self.job.dataloader(TensorDataset(X[:samples], Y[:samples]), shuffle=True, seed=SEED)

    def train(self, loader: ElasticLoader, steps: int = 1000) -> None:
        done = 0
        for x, y in loader:
            self.job.backward(functional.cross_entropy(self.model(x), y))
            self.optimizer.step()
            if self.job.sync_gradients:
                self.steps.append((self.job.epoch, self.job.step))
                done += 1
                if done == steps:
                    break


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_second_phase_trains_all_its_epochs(world_size: int) -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int]]:
        script = Script(group)
        for epochs in (2, 3):
            loader = script.loader(16)
            for _ in script.job.epochs(epochs):
                script.train(loader)
        return script.steps

    epochs = [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]
    assert run_ranks(world_size, body) == [[(epoch, step + 1) for step, epoch in enumerate(epochs)]] * world_size


@pytest.mark.parametrize("end", ["stop", "break"])
def test_a_phase_that_ended_early_is_followed_by_a_whole_one(end: str) -> None:
    def body(group: ThreadGroup) -> int:
        script = Script(group)
        loader = script.loader(16)
        for epoch in script.job.epochs(9):
            script.train(loader)
            if epoch == 1:
                if end == "break":
                    break
                script.job.stop("early")
        for _ in script.job.epochs(2):
            script.train(loader)
        return script.job.step

    assert run_ranks(2, body) == [8, 8]


@pytest.mark.parametrize("world_size", [1, 3])
def test_several_loops_in_an_epoch_are_all_trained(world_size: int) -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int]]:
        script = Script(group)
        first, second = script.loader(16), script.loader(24)
        for _ in script.job.epochs(2):
            script.train(first)
            script.train(second)
        return script.steps

    epochs = [0] * 5 + [1] * 5
    assert run_ranks(world_size, body) == [[(epoch, step + 1) for step, epoch in enumerate(epochs)]] * world_size


def test_a_break_and_another_loop_over_the_same_loader_are_two_loops_of_one_epoch() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int]]:
        script = Script(group)
        loader = script.loader(32)
        for _ in script.job.epochs(2):
            script.train(loader, steps=2)
            script.train(loader)
        return script.steps

    assert run_ranks(2, body) == [[(step // 6, step + 1) for step in range(12)]] * 2


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_look_at_a_batch_is_no_loop_whoever_takes_it(world_size: int, where: str) -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int]]:
        script = Script(group)
        loader = script.loader(16)
        for _ in script.job.epochs(3):
            if where == "before":
                next(iter(loader))
            script.train(loader)
            if where == "after" and script.job.is_main:
                x, _ = next(iter(loader))
                assert len(x)
        return script.steps

    epochs = [0, 0, 1, 1, 2, 2]
    assert run_ranks(world_size, body) == [[(epoch, step + 1) for step, epoch in enumerate(epochs)]] * world_size


def test_loops_outside_of_job_epochs_are_an_epoch_each() -> None:
    def body(group: ThreadGroup) -> list[tuple[int, int]]:
        script = Script(group)
        loader = script.loader(16)
        for _ in range(3):
            script.train(loader)
        return script.steps

    assert run_ranks(2, body) == [[(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]] * 2


def test_each_loop_and_each_phase_has_an_order_of_its_own_and_the_first_that_of_the_epoch() -> None:
    positions = [
        Position(epoch=epoch, phase=phase, loop=loop) for epoch in (0, 1) for phase in (0, 1) for loop in (0, 1)
    ]
    assert len({position.order() for position in positions}) == len(positions)
    assert [Position(epoch=epoch).order() for epoch in range(3)] == [0, 1, 2]
    assert all(one.order(2) == Position(one.epoch + 2, phase=one.phase, loop=one.loop).order() for one in positions)


def test_an_epochs_generator_of_an_earlier_phase_is_refused() -> None:
    def body(group: ThreadGroup) -> None:
        script = Script(group)
        early = script.job.epochs(3)
        next(early)
        next(script.job.epochs(3))
        with pytest.raises(RuntimeError, match=r"after another job.epochs\(\) had begun"):
            next(early)

    run_ranks(1, body)


def test_a_rank_that_skips_a_phase_gets_what_sums_came_to_after_it() -> None:
    def body(group: ThreadGroup) -> tuple[list[float], int]:
        script = Script(group)
        session = script.job._session
        membership, session.membership = session.membership, None  # as a joiner that comes in the second phase
        session.move_to(session.position.at(1, 1))
        session.sums.known = {"0.end.1": {"named": {"x": 3.5}}}
        found = []
        for _ in range(2):
            loader = script.loader(16)
            for _ in script.job.epochs(3):
                session.membership = membership
                script.train(loader)
            found.append(script.job.reduce({"x": 1.0})["x"])
        return found, script.job.step

    assert run_ranks(1, body) == [([3.5, 1.0], 4)]


def test_sums_of_the_last_epochs_and_those_between_phases_are_kept() -> None:
    sums, course = Sums(), Course()
    for phase in range(2):
        course.begin_phase(counted=True)
        for epoch in range(5):
            course.begin_epoch(epoch)
            sums.note(course.key_of_sum(), {"loss": float(epoch), "by": torch.ones(2, dtype=torch.float64)})
        course.end_phase()
        sums.note(course.key_of_sum(), float(phase))
    assert list(sums.lasting()) == ["0.4.1", "0.end.1", "1.4.1", "1.end.1"]
    assert list(sums.known) == ["0.4.1", "0.end.1", "1.3.1", "1.4.1", "1.end.1"]
    assert sums.take("1.4.1")["by"].tolist() == [1.0, 1.0]
    assert [sums.take(key)["loss"] for key in ("1.0.1", "1.3.1", "0.2.1")] == [4.0, 3.0, 4.0]


def test_a_script_that_resumes_in_a_later_loop_gets_the_newest_sum_after_the_skipped() -> None:
    def body(group: ThreadGroup) -> tuple[list[float], int]:
        script = Script(group)
        session = script.job._session
        membership, session.membership = session.membership, None  # as one that goes on from a checkpoint of loop 2
        session.move_to(session.position.at(0, 2))
        session.sums.known = {"0.1.1": {"named": {"x": 3.5}}}
        loader, found = script.loader(16), []
        for loop in range(4):
            if loop == 2:
                session.membership = membership
            script.train(loader)
            found.append(script.job.reduce({"x": 1.0})["x"])
        return found, script.job.step

    assert run_ranks(1, body) == [([3.5, 3.5, 1.0, 1.0], 4)]


def test_the_whole_training_is_told_with_all_loops_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> list[int | None]:
        script = Script(group)
        told = []
        progress = script.job._engine.progress
        report = progress.report

        def tell(loader: Any, **more: Any) -> None:
            report(loader, **more)
            told.append(progress._total(loader, loader.steps_per_epoch))

        monkeypatch.setattr(progress, "report", tell)
        first, second = script.loader(16), script.loader(24)
        for epochs in (2, 1):
            for _ in script.job.epochs(epochs):
                script.train(first)
                script.train(second)
        return told

    totals = run_ranks(1, body)[0]
    assert totals == [4] * 3 + [10] * 4 + [10] * 3 + [10] * 4 + [15] * 7


@pytest.fixture
def last_seed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int | None]:
    """Returns with what this rank was seeded last: ranks are threads here, and share the generators themselves."""
    own = threading.local()
    seed_all = rng.seed_all

    def seed(number: int, device: torch.device | None = None) -> None:
        own.seed = number
        seed_all(number, device)

    monkeypatch.setattr(rng, "seed_all", seed)
    return lambda: getattr(own, "seed", None)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("steps", [2, 1000], ids=["break", "end"])
def test_outside_of_loops_all_ranks_draw_the_same_numbers_at_any_size(
    last_seed: Callable[[], int | None], steps: int, counted: bool
) -> None:
    def body(group: ThreadGroup, behind: int = 0) -> list[int | None]:
        script = Script(group)
        loader = script.loader(32)
        script.job._session.move_to(Position(epoch=behind))  # as a rank that comes where others have done so much
        seeds = []
        for _ in script.job.epochs(3) if counted else range(3):
            seeds.append(last_seed())
            script.train(loader, steps)
            seeds.append(last_seed())
            script.train(script.loader(16))
            seeds.append(last_seed())
        return [*seeds, last_seed()]

    alone, *more = [seeds for size in (1, 2, 3) for seeds in run_ranks(size, body)]
    assert all(one == alone for one in more)
    assert len(set(alone)) >= 7  # other numbers each time
    late = run_ranks(1, lambda group: body(group, 1))[0]
    assert late == alone[-len(late) :] if counted else late[1:] == alone[1:]


@pytest.mark.parametrize("admitted", [True, False], ids=["admitted", "before"])
def test_a_look_at_a_batch_leaves_random_numbers_as_they_are(admitted: bool) -> None:
    def body(group: ThreadGroup) -> tuple[float, float]:
        script = Script(group)
        if not admitted:
            script.job._session.membership = None
        loader = script.loader(16)
        drawn = []
        for looks in (False, True):
            torch.manual_seed(5)
            if looks:
                next(iter(loader))
            drawn.append(float(torch.rand(())))
        return drawn[0], drawn[1]

    with rng.preserve():
        ((one, other),) = run_ranks(1, body)
    assert one == other


@pytest.mark.parametrize("alike", [True, False])
def test_a_part_that_is_made_within_a_loop_is_compared(alike: bool) -> None:
    def body(group: ThreadGroup) -> int:
        script = Script(group)
        nn.init.zeros_(script.model.weight)
        nn.init.zeros_(script.model.bias)
        for x, y in script.loader(48):
            script.job.backward(functional.cross_entropy(script.model(x), y))
            script.optimizer.step()
            if script.job.sync_gradients and script.job.step == 2:
                with torch.no_grad():
                    bias = script.model.bias + (0.0 if alike else group.rank)
                script.model.bias = nn.Parameter(bias)
                script.optimizer.param_groups[0]["params"] = list(script.model.parameters())
        return script.job.step

    if alike:
        assert run_ranks(2, body) == [6, 6]
        return
    with pytest.raises(RuntimeError, match="no longer the same on all ranks: bias on rank 1 "):
        run_ranks(2, body)


def test_an_optimizer_of_a_later_phase_whose_state_can_not_travel_is_found_in_its_first_step() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            super().step()
            self.state[self.param_groups[0]["params"][0]]["history"] = {1.5}

    def body(group: ThreadGroup) -> list[int]:
        script = Script(group)
        engine, loader, session = script.job._engine, script.loader(8), script.job._session
        advance = engine.advance

        def with_a_launcher() -> None:
            advance()
            session.member = object()  # type: ignore[assignment]
            try:
                engine._refuse_what_stays()
            finally:
                session.member = None

        engine.advance = with_a_launcher  # type: ignore[method-assign]
        for _ in script.job.epochs(1):
            script.train(loader)
        script.optimizer = script.job.prepare(Own(script.model.parameters(), lr=0.1))
        with pytest.raises(TypeError, match=r"optimizer\[1\].*history: builtins.set .* since its first step"):
            for _ in script.job.epochs(1):
                script.train(loader)
        return [script.job.step]

    assert run_ranks(1, body) == [[2]]


def test_a_joiner_whose_phase_ends_while_it_waits_goes_on_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> tuple[list[int], list[float], int]:
        script = Script(group)
        session = script.job._session
        membership, session.membership = session.membership, None

        def admit(_: object) -> bool:
            if session.course.phase == 0:
                session.move_to(session.position.at(1, 1))
                session.sums.known = {"0.2.1": 3.5}
                return False
            session.membership = membership
            return True

        monkeypatch.setattr(script.job._engine._resizer, "admit", admit)
        loader, seen, sums = script.loader(16), list[int](), list[float]()
        for _ in range(2):
            for epoch in script.job.epochs(3):
                seen.append(epoch)
                assert len(seen) < 5
                script.train(loader)
                sums.append(script.job.reduce(1.0))
        return seen, sums, script.job.step

    assert run_ranks(1, body) == [([0, 1, 2], [3.5, 1.0, 1.0], 4)]


def test_a_look_at_a_joiners_first_batch_is_no_loop_as_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> tuple[int, int, int]:
        script = Script(group)
        session = script.job._session
        membership, session.membership = session.membership, None

        def admit(_: object) -> bool:
            session.membership = membership
            return True

        monkeypatch.setattr(script.job._engine._resizer, "admit", admit)
        loader = script.loader(16)
        for _ in script.job.epochs(1):
            for x, y in loader:
                if script.job.world_size is not None:
                    break
                script.job.backward(functional.cross_entropy(script.model(x), y))
            script.train(loader)
            return session.course.where
        raise AssertionError("no epoch")

    assert run_ranks(1, body) == [(0, 0, 0)]


class Standing:
    """The formations of a member for which the group of a growth stands."""

    def __init__(self, formation: Formation) -> None:
        self.formation = formation
        self.declined = False

    def ready(self) -> Formation:
        return self.formation

    def decline(self, formation: Formation, why: MovedOn) -> None:
        assert formation is self.formation
        self.declined = True


@pytest.mark.parametrize(
    ("way", "declined"), [("an epoch later", False), ("a phase later", True), ("the next own loop", True)]
)
def test_a_growth_is_given_up_whose_joiners_wait_in_a_loop_that_does_not_come_again(way: str, declined: bool) -> None:
    def body(group: ThreadGroup) -> bool:
        script = Script(group)
        session, resizer, loader = script.job._session, script.job._engine._resizer, script.loader(16)
        session.course.begin_phase(counted=way != "the next own loop")
        session.course.begin_epoch(0)
        session.course.begin_loop()
        resizer.begin_loop(loader)
        formation = Formation(5, 2, "grow", (0, 1), joiners=(1,), group=group)  # type: ignore[arg-type]
        standing = Standing(formation)
        session.member = SimpleNamespace(number=0, formations=standing)  # type: ignore[assignment]
        resizer.join_point.reserve(formation)
        if way == "a phase later":
            session.course.begin_phase(counted=True)
        session.course.begin_epoch(session.course.epoch + 1)
        session.course.begin_loop()
        resizer.begin_loop(loader)
        return standing.declined

    assert run_ranks(1, body) == [declined]
