"""Exact gradients in real process groups: after `job.backward` all ranks hold the same bits, the whole batch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.launches import launched
from tests.support.scripts import gradient
from tests.support.step_indices import step_indices

LONG = 150.0  # five ranks import torch on a machine that does other things too
BUCKETS = 1024  # a width at which the gradient is reduced in more than one bucket


def plain(samples: int, batch: int, width: int) -> tuple[list[torch.Tensor], list[float]]:
    """The reference: torch alone, the whole batch, one backward pass; each step's gradient and loss."""
    x, tokens, label = gradient.data(samples).tensors
    model = gradient.build(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=gradient.RATE)
    gradients, losses = [], []
    for epoch in range(gradient.EPOCHS):
        for step in range(-(-samples // batch)):
            chosen = torch.from_numpy(step_indices(samples, batch, gradient.SEED, epoch, step, True, False))
            if epoch == 0:
                loss = gradient.sample_loss(model, x[chosen], label[chosen])
            else:
                loss = gradient.token_loss(model, x[chosen], tokens[chosen])
            loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            losses.append(float(loss.detach()))
            optimizer.step()
            optimizer.zero_grad()
    return gradients, losses


@pytest.mark.parametrize(
    ("world_size", "samples", "batch", "micro", "width"),
    [
        pytest.param(1, 29, 12, 5, 16, marks=pytest.mark.thorough, id="one rank, with accumulation"),
        pytest.param(
            2, 33, 12, 3, 16, marks=pytest.mark.thorough, id="two ranks, a batch that divides, a tail that does not"
        ),
        pytest.param(3, 35, 11, 2, BUCKETS, id="three ranks, a tail of two samples"),
        pytest.param(4, 11, 3, 2, 16, marks=pytest.mark.thorough, id="four ranks, a batch of three samples"),
        pytest.param(5, 17, 13, 2, 16, marks=pytest.mark.thorough, id="five ranks, a tail of four samples"),
    ],
)
def test_gradient_is_that_of_the_whole_batch(
    world_size: int, samples: int, batch: int, micro: int, width: int, tmp_path: Path
) -> None:
    options = {"folder": str(tmp_path), "samples": samples, "batch": batch, "micro": micro, "width": width}
    nodes = f"{world_size}:{world_size}"
    with launched("--nodes", nodes, "--", gradient.__file__, json.dumps(options), cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
        formed = [event["world_size"] for event in job.events.of("generation_formed")]
    assert formed == [world_size]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    assert all(rank == ranks[0] for rank in ranks), "ranks hold different gradients or losses"
    assert_same_gradients(tmp_path, samples, batch, width)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("nproc", "samples", "batch", "micro"),
    [
        pytest.param(2, 29, 11, 2, id="two ranks each, a batch and a tail that they do not divide"),
        pytest.param(2, 11, 3, 2, id="two ranks each, a batch of three samples"),
        pytest.param(4, 29, 13, 1, id="four ranks each, a batch and a tail that they do not divide"),
        pytest.param(4, 17, 5, 2, id="four ranks each, a batch of five samples"),
    ],
)
def test_gradient_of_models_sharded_over_two_nodes_is_that_of_the_whole_batch(
    nproc: int, samples: int, batch: int, micro: int, tmp_path: Path
) -> None:
    options = {"folder": str(tmp_path), "samples": samples, "batch": batch, "micro": micro, "width": 17}
    arguments = ("--nodes", "2:2", "--nproc-per-node", str(nproc), "--", gradient.__file__)
    with launched(*arguments, json.dumps({**options, "sharded": True}), cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2 * nproc)]
    assert all(rank == ranks[0] for rank in ranks), "ranks hold different gradients or losses"
    assert_same_gradients(tmp_path, samples, batch, 17)


def test_a_rank_that_catches_up_has_a_gradient_of_zeros(tmp_path: Path) -> None:
    """The script reads ``p.grad``, also in the step that this rank takes over from those that have completed it."""
    samples, batch, width, caught_up = 35, 11, 16, 1
    options = {"folder": str(tmp_path), "samples": samples, "batch": batch, "micro": 2, "width": width}
    fault = {"ELASTIC_FAULT": f"break=reduced@{caught_up}:3"}
    with launched(
        "--nodes", "3:3", "--", gradient.__file__, json.dumps(options), cwd=tmp_path, environment=fault
    ) as job:
        assert job.wait(LONG) == 0, job.stderr
    digests = [json.loads((tmp_path / f"rank-{rank}.json").read_text())["digests"] for rank in range(3)]
    zeros = torch.zeros(sum(p.numel() for p in gradient.build(width).parameters()), dtype=torch.float64)
    assert digests[2][caught_up] == gradient.digest(zeros)
    digests[2][caught_up] = digests[0][caught_up]
    assert digests[1] == digests[0] and digests[2] == digests[0]
    assert_same_gradients(tmp_path, samples, batch, width)


def assert_same_gradients(folder: Path, samples: int, batch: int, width: int) -> None:
    """Fails unless rank 0 had the gradients and the losses of the plain training."""
    found = torch.load(folder / "gradients.pt", weights_only=True)
    gradients, losses = plain(samples, batch, width)
    assert len(found) == len(gradients)
    for step, (mine, wanted) in enumerate(zip(found, gradients, strict=True)):
        assert float((mine - wanted).norm() / wanted.norm()) < 1e-12, f"step {step}"
    told = json.loads((folder / "rank-0.json").read_text())["losses"]
    assert told == pytest.approx(losses, rel=1e-12)
