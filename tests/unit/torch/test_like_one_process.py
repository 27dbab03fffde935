"""Law 4: whatever a script does, it trains like the plain loop in one process.

Each case is a plain training loop in torch alone, and the same with a job; ranks are threads here (`thread_group`),
processes in tests/local.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from elastic_launcher.sampling import step_indices
from elastic_launcher.torch.job import Job
from tests.unit.torch.thread_group import ThreadGroup, run_ranks, thread_job

SAMPLES, BATCH, FEATURES, EPOCHS, SEED = 50, 12, 5, 2, 7
X = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (SAMPLES,), generator=torch.Generator().manual_seed(2))


def batches(epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The global batches of an epoch, in order; the last one is the tail."""
    steps = math.ceil(SAMPLES / BATCH)
    indices = [torch.from_numpy(step_indices(SAMPLES, BATCH, SEED, epoch, step, True, False)) for step in range(steps)]
    return [(X[i], Y[i]) for i in indices]


class Case:
    """A model and how it is trained; the plain way by default."""

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x), y)

    def before_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """What the script does once before each step."""


def train_plain(case: Case) -> nn.Module:
    """The reference: torch alone, one process, whole batches."""
    model = case.build()
    optimizer = case.optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    step = 0
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            case.before_step(model, optimizer, step)
            case.loss(model, x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
    return model


def train_with_job(case: Case, model: nn.Module, job: Job) -> nn.Module:
    """The same with a job; the model is built beforehand, since threads share the random generator."""
    optimizer = case.optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
    done = -1
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            if job.step != done:
                case.before_step(model, optimizer, job.step)
                done = job.step
            job.backward(case.loss(model, x, y))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return model


class Checkpointed(Case):
    """One layer used twice, recomputed in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        self.reentrant = reentrant

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.ModuleDict({"a": nn.Linear(FEATURES, 8), "s": nn.Linear(8, 8), "z": nn.Linear(8, 3)}).double()

    def loss(self, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(model["a"](x))
        for _ in range(2):
            h = checkpoint(lambda v: torch.tanh(model["s"](v)), h, use_reentrant=self.reentrant)
        return functional.cross_entropy(model["z"](h), y)


class Unused(Case):
    """A layer that no step uses, and one that only samples of a kind use."""

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        layers = {"a": nn.Linear(FEATURES, 8), "some": nn.Linear(8, 3), "none": nn.Linear(8, 3), "z": nn.Linear(8, 3)}
        return nn.ModuleDict(layers).double()

    def loss(self, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(model["a"](x))
        out = model["z"](h)
        chosen = x[:, 0] > 0.8
        if bool(chosen.any()):
            out = out + torch.where(chosen[:, None], model["some"](h), torch.zeros_like(out))
        return functional.cross_entropy(out, y)


class Flipping(Case):
    """A layer is frozen and thawed, and a group added, in the middle."""

    def build(self) -> nn.Module:
        model = super().build()
        model[0].weight.requires_grad_(False)
        return model

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([model[0].bias, *model[2].parameters()], lr=0.05)

    def before_step(self, model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 2:
            model[0].weight.requires_grad_(True)
            optimizer.add_param_group({"params": [model[0].weight], "lr": 0.01})
        model[2].bias.requires_grad_(step not in (4, 5))


class Tied(Case):
    """Two layers share one weight."""

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()
        model[4].weight = model[2].weight
        return model


CASES: dict[str, Callable[[], Case]] = {
    "plain": Case,
    "checkpoint": lambda: Checkpointed(False),
    "checkpoint reentrant": lambda: Checkpointed(True),
    "unused parameters": Unused,
    "flips and groups": Flipping,
    "tied weights": Tied,
}


@pytest.mark.parametrize("max_batch", [12, 2], ids=["accumulation 1", "accumulation 4"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", CASES)
def test_trains_like_one_process(name: str, world_size: int, max_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.torch.layout.BUCKET_BYTES", 256)  # several buckets, as large models have
    wanted = train_plain(CASES[name]())
    start = CASES[name]().build()
    models = run_ranks(
        world_size,
        lambda group: train_with_job(CASES[name](), copy.deepcopy(start), thread_job(group, BATCH, max_batch)),
    )
    for model in models:
        for (key, expected), (_, found) in zip(wanted.named_parameters(), model.named_parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("world_size", [1, 3])
def test_two_backward_calls_add_their_means(world_size: int) -> None:
    def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(x)
        return functional.cross_entropy(out, y), out.square().mean()

    plain = Case().build()
    optimizer = Case().optimizer(plain)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            first, second = losses(plain, x, y)
            (first + second).backward()
            optimizer.step()
            optimizer.zero_grad()
    start = Case().build()

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, 3)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, Case().optimizer(model))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        for _ in job.epochs(EPOCHS):
            for x, y in loader:
                job.backward(losses(model, x, y)[0])
                job.backward(losses(model, x, y)[1])
                optimizer.step()
                optimizer.zero_grad()
        return model

    for model in run_ranks(world_size, body):
        for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def gan_models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(4)
    generator = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, FEATURES)).double()
    judge = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return generator, judge


def gan_parts(
    generator: nn.Module, judge: nn.Module
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.02) for part in (generator, judge)]
    return generator, judge, *optimizers


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_gan_trains_like_one_process(world_size: int) -> None:
    one = torch.ones

    def judge_loss(generator: nn.Module, judge: nn.Module, x: torch.Tensor) -> torch.Tensor:
        real = functional.binary_cross_entropy_with_logits(judge(x), one(len(x), 1, dtype=x.dtype))
        made = generator(x).detach()
        fake = functional.binary_cross_entropy_with_logits(judge(made), torch.zeros(len(x), 1, dtype=x.dtype))
        return real + fake

    def generator_loss(generator: nn.Module, judge: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(judge(generator(x)), one(len(x), 1, dtype=x.dtype))

    start = gan_models()
    generator, judge, opt_g, opt_d = gan_parts(*copy.deepcopy(start))
    for epoch in range(EPOCHS):
        for x, _ in batches(epoch):
            opt_d.zero_grad()
            judge_loss(generator, judge, x).backward()
            opt_d.step()
            opt_g.zero_grad()
            generator_loss(generator, judge, x).backward()
            opt_g.step()

    def body(group: ThreadGroup) -> tuple[nn.Module, nn.Module]:
        job = thread_job(group, BATCH, BATCH)
        g, d, og, od = job.prepare(*gan_parts(*copy.deepcopy(start)))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        for _ in job.epochs(EPOCHS):
            for x, _ in loader:
                od.zero_grad()
                job.backward(judge_loss(g, d, x), optimizer=od)
                od.step()
                og.zero_grad()
                job.backward(generator_loss(g, d, x), optimizer=og)
                og.step()
        return g, d

    for g, d in run_ranks(world_size, body):
        wanted = [*generator.parameters(), *judge.parameters()]
        for expected, found in zip(wanted, [*g.parameters(), *d.parameters()], strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("max_batch", [12, 2])
def test_grad_scaler_skips_an_overflow_on_all_ranks(world_size: int, max_batch: int) -> None:
    def poisoned(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * (float("inf") if step == 3 else 1.0)

    start = Case().build().float()

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
        model = copy.deepcopy(start)  # threads share the random generator
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.05), scaler

    plain, optimizer, scaler = parts()
    step = 0
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            scaler.scale(poisoned(step, functional.cross_entropy(plain(x.float()), y))).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1

    def body(group: ThreadGroup) -> tuple[nn.Module, float, list[float]]:
        job = thread_job(group, BATCH, max_batch)
        model, optimizer, mine = job.prepare(*parts())
        loader = job.dataloader(TensorDataset(X.float(), Y), shuffle=True, seed=SEED)
        logged = []
        for _ in job.epochs(EPOCHS):
            for x, y in loader:
                job.backward(mine.scale(poisoned(job.step, functional.cross_entropy(model(x), y))))
                mine.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                mine.step(optimizer)
                mine.update()
                optimizer.zero_grad()
                if job.sync_gradients:
                    logged.append(job.loss)
        return model, mine.get_scale(), logged

    for model, scale, logged in run_ranks(world_size, body):
        assert scale == scaler.get_scale() and len(logged) == step and logged[0] < 3
        for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_bf16_autocast_keeps_the_weights_of_uneven_micro_batches() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(model(x), y)

    start = Case().build().float()
    plain = copy.deepcopy(start)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            loss(plain, x.float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, 3)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X.float(), Y), shuffle=True, seed=SEED)
        for _ in job.epochs(EPOCHS):
            for x, y in loader:
                job.backward(loss(model, x, y))
                optimizer.step()
                optimizer.zero_grad()
        return model

    for model in run_ranks(2, body):
        for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=2e-2, atol=2e-3)


def replay_batch_norm(build: Callable[[], nn.Module], world_size: int, max_batch: int) -> nn.Module:
    """What batch norm must come to: per-rank statistics over micro-batches, averaged by samples after each step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            count = len(x)
            before = copy.deepcopy(model.state_dict())
            sums: dict[str, torch.Tensor] = {}
            start = 0
            for rank in range(world_size):
                samples = count // world_size + (rank < count % world_size)
                model.load_state_dict({**model.state_dict(), **{k: before[k] for k, _ in model.named_buffers()}})
                pieces = math.ceil(samples / max_batch)
                for piece in range(pieces):
                    size = samples // pieces + (piece < samples % pieces)
                    part = slice(start, start + size)
                    (functional.cross_entropy(model(x[part]), y[part]) * (size / count)).backward()
                    start += size
                for name, buffer in model.named_buffers():
                    value = buffer * (samples / count) if buffer.is_floating_point() else buffer
                    old = sums.get(name)
                    combine = torch.add if buffer.is_floating_point() else torch.maximum
                    sums[name] = value.clone() if old is None else combine(old, value)
            model.load_state_dict({**model.state_dict(), **sums})
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("max_batch", [12, 3])
def test_batch_norm_follows_the_history_of_world_sizes(world_size: int, max_batch: int) -> None:
    def build() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(  # over a length, so that one sample is enough for a rank
            nn.Unflatten(1, (1, FEATURES)),
            nn.Conv1d(1, 4, 2, bias=False),
            nn.BatchNorm1d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 3),
        ).double()

    start = build()
    wanted = replay_batch_norm(build, world_size, max_batch).state_dict()

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, max_batch)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        for _ in job.epochs(EPOCHS):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        return model

    for model in run_ranks(world_size, body):
        found = model.state_dict()
        for key, expected in wanted.items():
            assert torch.allclose(found[key].double(), expected.double(), rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("poison", [float("nan"), 1.0])
def test_a_micro_batch_without_weight_leaves_no_trace(poison: float) -> None:
    """Weight 0, even with a NaN: gradients, buffers, loss and the other ranks' are as if it had not been."""

    def build() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    def body(group: ThreadGroup, skip: bool) -> tuple[nn.Module, list[float]]:
        job = thread_job(group, 8, 4)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:16], Y[:16]), seed=SEED)
        losses = []
        for _ in job.epochs(1):
            for number, (x, y) in enumerate(loader):
                bad = group.rank == 1 and number == 0 and skip
                loss = functional.cross_entropy(model(x * poison if bad else x), y)
                job.backward(loss, weight=0 if bad else len(x))
                optimizer.step()
                optimizer.zero_grad()
                losses.append(job.loss)
        return model, losses

    start = build()
    (first, losses), (second, _) = run_ranks(2, lambda group: body(group, True))
    assert all(math.isfinite(value) for value in losses)
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b) and bool(torch.isfinite(a.double()).all())
    plain = build()
    functional.cross_entropy(plain(X[:4]), Y[:4]).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * (parameter.grad if parameter.grad is not None else 0)
    # the second step starts from what one rank's half made: weighed by its samples alone
    assert losses[0] == pytest.approx(float(functional.cross_entropy(build()(X[:4]), Y[:4])), rel=1e-12)


def test_random_numbers_of_a_step_depend_on_seed_step_and_rank_alone() -> None:
    def body(group: ThreadGroup) -> list[float]:
        job = thread_job(group, 4, 4)
        model = nn.Linear(FEATURES, 3).double()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:8], Y[:8]), seed=SEED)
        drawn = []
        for _ in job.epochs(2):
            for x, y in loader:
                drawn.append(random.random() + float(torch.rand(())))
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
        return drawn

    once, again = run_ranks(1, body)[0], run_ranks(1, body)[0]
    assert once == again and len(set(once)) == len(once)


def test_a_script_can_stop_all_ranks_at_one_step() -> None:
    def body(group: ThreadGroup) -> int:
        job = thread_job(group, 4, 2)
        model = nn.Linear(FEATURES, 3).double()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), seed=SEED)
        for _ in job.epochs(5):
            for x, y in loader:
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                if job.step == 7 and job.rank == 1:
                    job.stop("enough")
        return job.step

    assert run_ranks(3, body) == [7, 7, 7]


def test_all_ranks_may_break_together_and_one_alone_is_named() -> None:
    def body(group: ThreadGroup, ranks: tuple[int, ...]) -> tuple[int, str]:
        job = thread_job(group, 4, 2)
        model = nn.Linear(FEATURES, 3).double()
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X[:16], Y[:16]), seed=SEED)
        try:
            for _ in job.epochs(2):
                for x, y in loader:
                    job.backward(functional.cross_entropy(model(x), y))
                    optimizer.step()
                    if job.sync_gradients and job.step in (2, 5) and group.rank in ranks:
                        break
        except RuntimeError as error:
            return job.step, str(error)
        return job.step, ""

    assert run_ranks(2, lambda group: body(group, (0, 1))) == [(5, ""), (5, "")]
    outcomes = run_ranks(2, lambda group: body(group, (1,)))
    assert any("rank 1 left the training loop" in message for _, message in outcomes)


def test_evaluation_counts_each_sample_once_on_any_number_of_ranks() -> None:
    def body(group: ThreadGroup) -> dict[str, Any]:
        job = thread_job(group, 4, 3)
        loader = job.dataloader(TensorDataset(X[:10], Y[:10]))
        return job.evaluate(lambda x, y: {"sum": x.sum(), "by": torch.bincount(y, minlength=3)}, loader)

    for world_size in (1, 2, 3, 13):
        results = run_ranks(world_size, body)
        assert all(r["count"] == 10 for r in results)
        assert len({r["sum"] for r in results}) == 1
        assert results[0]["sum"] == pytest.approx(float(X[:10].sum()), rel=1e-12)
        assert results[0]["by"].tolist() == torch.bincount(Y[:10], minlength=3).tolist()
