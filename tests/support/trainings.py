"""What is trained: small trainings of many kinds, whose state travels, and a data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler as lr

from elastic_launcher.torch.state.training_state import TrainingState
from tests.support.step_indices import step_indices

SAMPLES, BATCH, FEATURES, EPOCHS, SEED = 50, 12, 5, 2, 7
X = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (SAMPLES,), generator=torch.Generator().manual_seed(2))


def batches(epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The global batches of an epoch, in order; the last one is the tail."""
    steps = math.ceil(SAMPLES / BATCH)
    indices = [torch.from_numpy(step_indices(SAMPLES, BATCH, SEED, epoch, step, True, False)) for step in range(steps)]
    return [(X[i], Y[i]) for i in indices]


def linear(outputs: int = 3, dtype: torch.dtype = torch.float64) -> nn.Linear:
    """Makes a layer that is the same on all ranks, also where they share one random generator."""
    layer = nn.Linear(FEATURES, outputs, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.linspace(-0.3, 0.4, parameter.numel()).view_as(parameter))
    return layer


class Doubling:
    """Something of the script's own, with nested state."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"count": 0, "history": [(0, 1.5)], "mean": torch.zeros(3), "deep": {"x": None}}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = dict(state)


class Tied(nn.Module):
    """A model with tied weights, buffers of several kinds, a frozen parameter and one in another memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(16, 16, bias=False)
        self.second = nn.Linear(16, 16, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("mask", torch.ones(16, dtype=torch.bool))
        self.register_buffer("table", torch.arange(3.0).expand(2, 3))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.convolution(x)).mean((2, 3)).repeat(1, 4)
        return self.second(torch.relu(self.first(y * self.mask))) * self.scale


@dataclass
class Training:
    """A training and one step of it."""

    state: TrainingState
    step: Callable[[int], None]


def _plain(optimize: Callable[[list[Any]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32) -> Training:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)
    optimizer = optimize(list(model.parameters()))

    def step(number: int) -> None:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number)).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return Training(TrainingState([model], [optimizer]), step)


def _scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> Training:
    training = _plain(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    scheduler = make(training.state.optimizers[0])
    training.state.schedulers.append(scheduler)
    act = scheduler.step
    scheduler.step = lambda *arguments: act(*arguments)  # as `prepare` does: its state_dict holds a function then

    def step(number: int) -> None:
        training.step(number)
        scheduler.step(*([float(number % 3)] if isinstance(scheduler, lr.ReduceLROnPlateau) else []))

    return Training(training.state, step)


def _tied() -> Training:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number: int) -> None:
        x = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return Training(TrainingState([model], [optimizer]), step)


def _scaled() -> Training:
    training = _plain(lambda p: torch.optim.Adam(p))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    training.state.scalers.append(scaler)
    model, optimizer = training.state.models[0], training.state.optimizers[0]

    def step(number: int) -> None:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(training.state, step)


def _grown() -> Training:
    """Freezes a layer, then thaws it and gives it to the optimizer in a group of its own, in the fourth step."""
    training = _plain(lambda p: torch.optim.Adam([{"params": p[:2], "betas": (0.8, 0.9)}], lr=torch.tensor(0.01)))
    model, optimizer = training.state.models[0], training.state.optimizers[0]
    for parameter in model[3].parameters():
        parameter.requires_grad_(False)

    def step(number: int) -> None:
        if number == 3:
            for parameter in model[3].parameters():
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.5, "weight_decay": 0.1})
        training.step(number)

    return Training(training.state, step)


def _several() -> Training:
    """Two models, two optimizers, a parameter in no model, registered objects and values of the script's own."""
    one, two = _plain(lambda p: torch.optim.Adam(p)), _plain(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5))
    temperature = nn.Parameter(torch.tensor([3.0]))
    two.state.optimizers[0].add_param_group({"params": [temperature], "lr": 0.25})
    average = torch.optim.swa_utils.AveragedModel(one.state.models[0])
    own = Doubling()
    state = TrainingState(one.state.models + two.state.models, one.state.optimizers + two.state.optimizers)
    state.register("own", own)
    state.register("average", average)

    def step(number: int) -> None:
        temperature.grad = torch.full((1,), float(number))
        one.step(number)
        two.step(number)
        average.update_parameters(one.state.models[0])
        own.values["count"] += 1
        own.values["mean"] = own.values["mean"] + number
        own.values["history"].append((number, number / 3))
        state.user["best"] = {"step": number, "loss": 1 / (number + 1)}

    return Training(state, step)


def _sequential(optimizer: torch.optim.Optimizer) -> lr.SequentialLR:
    first, then = lr.LinearLR(optimizer, total_iters=4), lr.CosineAnnealingLR(optimizer, T_max=5)
    return lr.SequentialLR(optimizer, [first, then], milestones=[3])


KINDS: dict[str, Callable[[], Training]] = {
    "sgd": lambda: _plain(lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd with momentum": lambda: _plain(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "adam": lambda: _plain(lambda p: torch.optim.Adam(p)),
    "adamw with amsgrad": lambda: _plain(lambda p: torch.optim.AdamW(p, amsgrad=True)),
    "adam, one at a time": lambda: _plain(lambda p: torch.optim.Adam(p, foreach=False)),
    "adam, fused": lambda: _plain(lambda p: torch.optim.Adam(p, fused=True)),
    "adagrad": lambda: _plain(lambda p: torch.optim.Adagrad(p)),
    "adafactor": lambda: _plain(lambda p: torch.optim.Adafactor(p)),
    "nadam": lambda: _plain(lambda p: torch.optim.NAdam(p)),
    "bfloat16": lambda: _plain(lambda p: torch.optim.AdamW(p), torch.bfloat16),
    "float64": lambda: _plain(lambda p: torch.optim.RMSprop(p, momentum=0.9), torch.float64),
    "tied": _tied,
    "steps": lambda: _scheduled(lambda o: lr.StepLR(o, 2)),
    "several steps": lambda: _scheduled(lambda o: lr.MultiStepLR(o, [2, 4, 4])),
    "lambda": lambda: _scheduled(lambda o: lr.LambdaLR(o, lambda step: 0.9**step)),
    "one cycle": lambda: _scheduled(lambda o: lr.OneCycleLR(o, max_lr=0.3, total_steps=20)),
    "cyclic": lambda: _scheduled(lambda o: lr.CyclicLR(o, 0.01, 0.1, step_size_up=3)),
    "sequential": lambda: _scheduled(_sequential),
    "chained": lambda: _scheduled(lambda o: lr.ChainedScheduler([lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)])),
    "averaging": lambda: _scheduled(lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.01)),
    "plateau": lambda: _scheduled(lambda o: lr.ReduceLROnPlateau(o, patience=1)),
    "scaler": _scaled,
    "group added": _grown,
    "several": _several,
}
STEPS_BEFORE, STEPS_AFTER = 5, 4


def trained(kind: str, seed: int, steps: int) -> Training:
    """Makes a training of a kind, and does some steps of it."""
    torch.manual_seed(seed)
    training = KINDS[kind]()
    for number in range(steps):
        training.step(number)
    return training


def picture(training: Training) -> list[Any]:
    """Returns everything of a training, bit by bit, in a form that processes can compare."""
    captured = training.state.capture()
    return [captured.header, [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in captured.tensors]]
