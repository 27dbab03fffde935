"""Whatever a script does, it trains like the plain loop in one process.

Each case is a plain training loop in torch alone, and the same with a job; ranks are threads here (`thread_group`),
processes in tests/local.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset, default_collate

from elastic_launcher.torch.job import Job
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, EPOCHS, FEATURES, SEED, X, Y, batches


def assert_close(model: nn.Module, plain: nn.Module, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Compares the parameters of two models."""
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=rtol, atol=atol)


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
            # ranks in threads share torch's generator: its lock and the interpreter's can wait for each other
            h = checkpoint(
                lambda v: torch.tanh(model["s"](v)), h, use_reentrant=self.reentrant, preserve_rng_state=False
            )
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


class Replaced(Case):
    """The head is replaced in the middle and given to the optimizer in the old one's place; a layer is added later."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def before_step(self, model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 2:
            model[2] = copy.deepcopy(model[2])
            nn.init.constant_(model[2].weight, 0.1)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        if step == 5:
            model.append(copy.deepcopy(model[1])).append(nn.utils.skip_init(nn.Linear, 3, 3).double())
            nn.init.eye_(model[4].weight)
            nn.init.zeros_(model[4].bias)
            optimizer.add_param_group({"params": list(model[4].parameters())})
        if step == 7:
            optimizer.param_groups.pop()


CASES: dict[str, Callable[[], Case]] = {
    "plain": Case,
    "checkpoint": lambda: Checkpointed(False),
    "checkpoint reentrant": lambda: Checkpointed(True),
    "unused parameters": Unused,
    "flips and groups": Flipping,
    "tied weights": Tied,
    "replaced parts": Replaced,
}


@pytest.mark.parametrize("max_batch", [12, 2], ids=["accumulation 1", "accumulation 4"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", CASES)
def test_trains_like_one_process(name: str, world_size: int, max_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "elastic_launcher.torch.gradients.buckets.BUCKET_BYTES", 256
    )  # several buckets, as large models have
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
        assert_close(model, plain)


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
        assert_close(model, plain, rtol=2e-4, atol=2e-5)


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
        assert_close(model, plain, rtol=2e-2, atol=2e-3)


class WithGaps(Dataset[Any]):
    """Samples of which some can't be read: the first ones, and others among them."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if index < BATCH // 2 or index % 5 == 3 else (X[index], Y[index])


def what_can_be_read(samples: list[Any]) -> Any:
    found = [sample for sample in samples if sample is not None]
    return default_collate(found) if found else None


@pytest.mark.parametrize(("world_size", "max_batch"), [(1, BATCH), (1, 2), (3, 1)])
def test_samples_that_collate_fn_leaves_out_count_nothing_with_the_weight_of_the_others(
    world_size: int, max_batch: int
) -> None:
    start, data = Case().build(), WithGaps()
    plain = copy.deepcopy(start)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for first in range(0, len(data), BATCH):
        x, y = what_can_be_read([data[index] for index in range(first, min(first + BATCH, len(data)))])
        functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    def body(group: ThreadGroup) -> nn.Module:
        job = thread_job(group, BATCH, max_batch)
        model = copy.deepcopy(start)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in job.dataloader(data, collate_fn=what_can_be_read):
            if batch is None:
                job.backward(None, weight=0)
            else:
                x, y = batch
                job.backward(functional.cross_entropy(model(x), y), weight=len(x))
            optimizer.step()
            optimizer.zero_grad()
        return model

    for model in run_ranks(world_size, body):
        assert_close(model, plain)
