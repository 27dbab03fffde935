"""Square norms are those of the gradients that the optimizers see, however parameters lie in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic_launcher.torch.gradients import square_norms
from elastic_launcher.torch.gradients.buckets import make_layout
from elastic_launcher.torch.gradients.square_norms import FEWEST_STEPS, SquareNorms

EPS = 1e-3
MOMENTS = (0.9, 0.95)


def parameters() -> list[nn.Parameter]:
    """Returns parameters that lie in memory in all ways, one that comes late, and one that is too new."""
    torch.manual_seed(3)
    made = [
        torch.randn(7, 5),
        torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(4, 6).T,
        torch.randn(()),
        torch.randn(9),
        torch.randn(3),
        torch.randn(4),
    ]
    return [nn.Parameter(tensor.double()) for tensor in made]


def trained(optimizer: torch.optim.Optimizer, made: list[nn.Parameter]) -> None:
    """Does some steps: the last but one parameter misses the first of them, and the last one has too few."""
    for step in range(FEWEST_STEPS + 3):
        for number, parameter in enumerate(made):
            parameter.grad = torch.randn_like(parameter)
            if number == 4:
                parameter.grad[::2] = 0.0
            if (number == 5 and step < 3) or (number == 6 and step < 4):
                parameter.grad = None
        optimizer.step()


def seen_by_adam(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradient: torch.Tensor, name: str) -> float:
    state = optimizer.state[parameter]
    if state["step"] < FEWEST_STEPS:
        return 0.0
    divided = gradient / ((state[name] / (1 - MOMENTS[1] ** float(state["step"]))).sqrt() + EPS)
    return float(divided[state[name] > 0].square().sum())


@pytest.mark.parametrize("most", [2, 3, 12, 1000])
@pytest.mark.parametrize("name", ["exp_avg_sq", "max_exp_avg_sq"])
def test_adam_sees_gradients_divided_by_the_root_of_its_second_moment(
    most: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(square_norms, "_most", lambda device: most)
    made = parameters()
    groups = [{"params": made[::2]}, {"params": made[1::2]}]
    optimizer = torch.optim.Adam(groups, lr=0.1, betas=MOMENTS, eps=EPS, amsgrad=name.startswith("max"))
    trained(optimizer, made)
    norms = SquareNorms([optimizer], [])
    norms.follow()
    layout = make_layout(made, [], torch.device("cpu"), norms.groups_of(made), 2)
    gradients = [torch.randn_like(parameter) for parameter in made]
    for bucket in layout.buckets:
        for index, view in zip(bucket.indices, bucket.views, strict=True):
            view.copy_(gradients[index])
        norms.add(bucket)
    seen = [seen_by_adam(optimizer, one, gradient, name) for one, gradient in zip(made, gradients, strict=True)]
    assert sum(value > 0 for value in seen) == len(made) - 1
    assert norms.take(layout).tolist() == pytest.approx([sum(seen[::2]), sum(seen[1::2])], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sgd_sees_gradients_as_they_are(dtype: torch.dtype) -> None:
    made = [nn.Parameter(parameter.detach().to(dtype)) for parameter in parameters()]
    alone = nn.Parameter(torch.randn(3, dtype=dtype))  # in no group
    norms = SquareNorms([torch.optim.SGD([{"params": made[:3]}, {"params": made[3:]}])], [])
    norms.follow()
    layout = make_layout([*made, alone], [], torch.device("cpu"), norms.groups_of([*made, alone]), 2)
    for bucket in layout.buckets:
        for index, view in zip(bucket.indices, bucket.views, strict=True):
            view.copy_([*made, alone][index].detach())
        norms.add(bucket)
    wanted = [sum(float(one.detach().double().square().sum()) for one in part) for part in (made[:3], made[3:])]
    assert norms.take(layout).tolist() == pytest.approx(wanted, rel=1e-6)
