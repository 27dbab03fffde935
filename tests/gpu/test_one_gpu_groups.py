"""Two ranks that share a GPU: their CUDA tensors are reduced over gloo, and a rank's state moves to the other."""

from __future__ import annotations

import torch
from torch import nn

from elastic_launcher.torch.collectives.group import Group, build_group
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.state.training_state import TrainingState
from elastic_launcher.torch.state.transfer import receive_state, send_state
from tests.support.rank_processes import Rank, ranks, run_ranks

GPU = torch.device("cuda", 0)
SIZE = 2048


def group_of(rank: Rank) -> Group:
    return build_group(rank.store, 1, rank.number, rank.world_size, 60.0, GPU, 60.0)


def _reduce(rank: Rank) -> list[float]:
    tensor = torch.full((1000,), float(rank.number + 1), device=GPU)
    group = group_of(rank)
    group.all_reduce(tensor).wait()
    largest = torch.full((3,), rank.number, device=GPU)
    group.all_reduce(largest, op="max").wait()
    return [tensor.sum().item(), largest.sum().item()]


def test_tensors_on_a_gpu_are_reduced() -> None:
    assert run_ranks(_reduce, 2) == [[3000.0, 3.0]] * 2


def _reduce_while_it_computes(rank: Rank) -> float:
    """Reduces what the GPU is still busy with, on a stream of its own, and uses it there without waiting."""
    group, stream = group_of(rank), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        eye = torch.eye(SIZE, device=GPU)
        made = torch.full((SIZE, SIZE), float(rank.number + 1), device=GPU)
        for _ in range(20):
            made = made @ eye
        group.all_reduce(made).wait()
        doubled = made * 2
    stream.synchronize()
    return doubled.double().mean().item()


def test_a_reduction_waits_for_the_stream_that_makes_its_tensor() -> None:
    assert run_ranks(_reduce_while_it_computes, 2) == [6.0, 6.0]


def _wait_for_nobody(rank: Rank) -> str:
    group = group_of(rank)
    rank.tell("here")
    if rank.number == 1:
        rank.hear()
        return ""
    rank.cut_when_told(group)
    try:
        group.all_reduce(torch.ones(1000, device=GPU)).wait()
    except GroupError as error:
        return str(error)
    return "no error"


def test_a_reduction_whose_peer_does_not_come_ends_when_the_group_is_cut() -> None:
    with ranks(_wait_for_nobody, 2) as two:
        assert two.heard_all() == ["here", "here"]
        two.say(0)
        assert "was cut" in two.heard(0)
        two.say(1)
        assert two.heard(1) == ""


def trained(steps: int) -> TrainingState:
    """A model on the GPU, with a large layer and small ones, after some steps of Adam."""
    torch.manual_seed(steps)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 600)).to(GPU)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(4, 3, 8, 8, device=GPU)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return TrainingState([model], [optimizer])


def _move(rank: Rank) -> list[tuple[str, list[float]]]:
    """Moves a state from rank 1 to rank 0; returns where its tensors lie, and what is in them."""
    group, state = group_of(rank), trained(3 if rank.number == 1 else 0)
    if rank.number == 1:
        send_state(group, 0, state.capture())
    else:
        received = receive_state(group, 1, state)
        state.finish(received.header, received.tensors)
    return [(tensor.device.type, tensor.double().reshape(-1).tolist()) for tensor in state.capture().tensors]


def test_a_state_on_a_gpu_moves_to_a_peer_bit_by_bit() -> None:
    taker, giver = run_ranks(_move, 2)
    assert {device for device, _ in giver} == {"cpu", "cuda"}, "Adam counts its steps on the host"
    assert taker == giver
