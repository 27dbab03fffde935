"""What is sharded over a node stays in parts: as gradients, on its way to another node, and in messages."""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from elastic_launcher.torch.gradients.buckets import make_layout
from elastic_launcher.torch.gradients.reducer import Reducer
from elastic_launcher.torch.shard.model import is_sharded_model, named_parameters, set_up
from elastic_launcher.torch.shard.tensors import as_shard, is_sharded, local
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.codec import encode, part_numbers
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState

CPU = torch.device("cpu")
RANKS = 2


@dataclass
class Holds:
    """Something that a script registers."""

    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """Returns what it holds."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it."""
        self.state = state


@pytest.fixture(params=[0, 1], ids=["first", "last"])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """This process as each rank of a node of two; what it reduces comes back as it was."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=RANKS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    yield request.param
    dist.destroy_process_group()


def build(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns a model of odd sizes, sharded, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = as_shard(parameter, torch.full_like(local(parameter), 1.0 + number))
    optimizer.step()


def test_a_part_is_this_ranks_rows_in_the_parameters_own_memory(rank: int) -> None:
    model, _ = build()
    weight = model[0].weight
    part = local(weight)
    assert part.shape == ((3, 4) if rank == 0 else (2, 4))
    part.data.zero_()
    assert not weight.to_local().any()
    again = as_shard(weight, part)
    assert isinstance(again, DTensor) and again.shape == (5, 4) and local(again).data_ptr() == part.data_ptr()
    assert local(part) is part and as_shard(part, part) is part


def test_gradients_need_no_more_memory_than_the_parts(rank: int) -> None:
    model, _ = build()
    layout = make_layout(list(model.parameters()), [], CPU)
    parts = sum(local(p).numel() for p in model.parameters())
    assert sum(bucket.flat.numel() for bucket in layout.parts) == parts < sum(p.numel() for p in model.parameters())
    tail = layout.buckets[-1]
    assert not tail.sharded and not tail.parameters and tail.flat.dtype == torch.float64
    for bucket in layout.parts:
        for grad, view in zip(bucket.grads, bucket.views, strict=True):
            assert local(grad).data_ptr() == view.data_ptr()
    assert layout.wire(()).parts == sum(p.numel() for p in model.parameters())  # the same on all ranks of a node


def test_a_joiner_gets_the_part_and_the_optimizers_state_of_it(rank: int) -> None:
    (model, optimizer), (other, others) = build(), build(seed=1)
    step(model, optimizer)
    state, joiner = TrainingState([model], [optimizer]), TrainingState([other], [others])
    captured = state.capture()
    assert all(not is_sharded(tensor) for tensor in captured.tensors)
    assert sum(t.numel() for t in captured.tensors if t.dim()) == 3 * sum(local(p).numel() for p in model.parameters())
    joiner.reserve(json.loads(json.dumps(state.outline())))
    header = json.loads(json.dumps(captured.header))
    targets = joiner.targets(header)
    for target, tensor in zip(targets, captured.tensors, strict=True):
        target.copy_(tensor)
    joiner.finish(header, targets)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(local(mine), local(theirs))
        for name in ("exp_avg", "exp_avg_sq"):
            got = others.state[theirs][name]
            assert is_sharded(got) and torch.equal(local(got), local(optimizer.state[mine][name]))
    step(model, optimizer)
    step(other, others)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(local(mine), local(theirs))


def test_a_joiner_reserves_its_part_of_what_another_rank_describes() -> None:
    wanted: Any = None
    for number in range(RANKS):  # the description is of the first rank
        dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=RANKS)
        model, optimizer = build()
        if number == 0:
            step(model, optimizer)
            wanted = TrainingState([model], [optimizer]).outline()
        else:
            TrainingState([model], [optimizer]).reserve(json.loads(json.dumps(wanted)))
            for parameter in model.parameters():
                state = optimizer.state[parameter]["exp_avg"]
                assert is_sharded(state) and local(state).shape == local(parameter).shape
        dist.destroy_process_group()


def test_parts_travel_also_while_a_pass_has_gathered_the_whole(rank: int) -> None:
    (model, optimizer), (other, others) = build(), build(seed=1)
    step(model, optimizer)
    for one in (model, other):
        set_up(one)
    state, joiner = TrainingState([model], [optimizer]), TrainingState([other], [others])
    parts, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    model.unshard()  # type: ignore[operator]
    other.unshard()  # type: ignore[operator]
    assert not any(map(is_sharded, model.parameters())) and is_sharded_model(model)
    assert [name for name, _ in named_parameters(model)] == names
    assert all(one is part for (_, one), part in zip(named_parameters(model), parts, strict=True))
    captured = state.capture()
    header = json.loads(json.dumps(captured.header))
    targets = joiner.targets(header)
    for target, tensor in zip(targets, captured.tensors, strict=True):
        target.copy_(tensor)
    joiner.finish(header, targets)
    for part, theirs in zip(parts, other.parameters(), strict=True):
        assert is_sharded(theirs) and torch.equal(local(theirs), local(part))  # the next pass gathers what has come


def test_names_of_tied_weights_are_kept(rank: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    fully_shard(model)
    set_up(model)
    assert [name for name, _ in named_parameters(model, "m")] == ["m.0.weight", "m.0.bias", "m.1.bias"]
    assert [name for name, _ in named_parameters(model, remove_duplicate=False)] == [
        *("0.weight", "0.bias", "1.weight", "1.bias")
    ]
    assert TrainingState([model]).aliases() == {"1.weight": "0.weight"}


def test_micro_batches_without_samples_keep_what_the_other_ranks_of_the_node_added(rank: int) -> None:
    model, _ = build()
    parameters = list(model.parameters())
    reducer = Reducer(lambda: parameters, ModelBuffers(), CPU)

    def loss(gradients: dict[int, float]) -> torch.Tensor:
        """A loss whose backward pass leaves these on the parameters, as sums over the node."""

        def give(_: torch.Tensor) -> None:
            for number, value in gradients.items():
                parameter = parameters[number]
                if parameter.grad is None:
                    parameter.grad = as_shard(parameter, torch.full_like(local(parameter).detach(), value))
                else:
                    local(parameter.grad).add_(value)

        start = torch.ones((), dtype=torch.float64, requires_grad=True)
        end = start * 1
        end.register_hook(give)
        return end

    reducer.begin_step()
    slot = reducer.slot(0, None, -1)
    for gradients in ({0: 1.0, 1: 2.0}, {0: 4.0}):
        given = loss(gradients)
        reducer.accumulate(slot, given, scale=0.0, weight=0.0, logged=given, samples=0, group=None)
    assert slot.used == [True, True, False, False] and slot.weight == 0
    found = {index: view for one in slot.layout.parts for index, view in zip(one.indices, one.views, strict=True)}
    assert [set(found[index].reshape(-1).tolist()) - {0.0} for index in (0, 1)] == [{5.0}, {2.0}]


class Chain(nn.Module):
    """Layers, of which a pass uses so many."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor, used: int) -> torch.Tensor:
        """Returns a loss."""
        for layer in self.layers[:used]:
            x = torch.tanh(layer(x))
        return x.square().mean()


def chain() -> Chain:
    """Returns such a model, each layer sharded by itself."""
    torch.manual_seed(0)
    model = Chain().double()
    for module in (*model.layers, model):
        fully_shard(module)
    set_up(model)
    return model


@pytest.mark.parametrize("counts", [True, False], ids=["a rank", "a rank that joins"])
@pytest.mark.filterwarnings("ignore:the parameter .* hook")
def test_gradients_of_no_more_than_one_module_are_there_twice(rank: int, counts: bool) -> None:
    model, plain = chain(), chain()
    parameters = list(model.parameters())
    reducer = Reducer(lambda: parameters, ModelBuffers(), CPU)
    came: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def look(part: torch.Tensor) -> None:
        assert part.grad is not None
        came.append(weakref.ref(part.grad))
        alive.append(len({id(one()) for one in came} - {id(None)}))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(look)
    reducer.begin_step()
    slot = reducer.slot(0, None, -1)
    for used, scale in ((2, 0.25), (3, 0.75)):  # the third layer's gradients come with the second micro-batch
        x = torch.randn(3, 4, dtype=torch.float64)
        more = {"scale": scale, "weight": 1.0, "samples": 3, "group": None, "counts": counts}
        loss = model(x, used)
        reducer.accumulate(slot, loss, logged=loss, **more)
        (plain(x, used) * scale).backward()
    assert max(alive[:4]) == 1 and all(parameter.grad is None for parameter in parameters)
    assert slot.used == [counts] * 6 + [False] * 2
    found = {index: view for one in slot.layout.parts for index, view in zip(one.indices, one.views, strict=True)}
    for index, parameter in enumerate(plain.parameters()):
        wanted = local(parameter.grad) if counts and parameter.grad is not None else torch.zeros_like(found[index])
        assert torch.equal(found[index], wanted)


def test_the_passes_of_a_node_that_joins_leave_nothing(rank: int) -> None:
    model, _ = build()
    parameters = list(model.parameters())
    reducer = Reducer(lambda: parameters, ModelBuffers(), CPU)

    def give(_: torch.Tensor) -> None:
        for parameter in parameters:
            parameter.grad = as_shard(parameter, torch.full_like(local(parameter).detach(), float("nan")))

    start = torch.ones((), dtype=torch.float64, requires_grad=True)
    end = start * 1
    end.register_hook(give)
    reducer.begin_step()
    slot = reducer.slot(0, None, -1)
    reducer.accumulate(slot, end, scale=0.0, weight=0.0, logged=end, samples=0, group=None, counts=False)
    assert not any(slot.used) and all(parameter.grad is None for parameter in parameters)
    assert all(not bucket.flat.any() for bucket in slot.layout.parts)


def test_a_part_of_another_division_is_refused_by_name(rank: int) -> None:
    model, optimizer = build()
    header = json.loads(json.dumps(TrainingState([model], [optimizer]).capture().header))
    header["tensors"][0][1] = [1, 4]
    with pytest.raises(StateMismatch, match=r"0\.weight is float64\[., 4\] on this rank and float64\[1, 4\] on"):
        TrainingState([model], [optimizer]).targets(header)


def test_what_is_registered_travels_whole_or_not_at_all(rank: int) -> None:
    model, _ = build()
    with pytest.raises(TypeError, match="a sharded tensor is carried only as a parameter"):
        TrainingState().register("average", model)


@pytest.mark.parametrize(
    "make",
    [
        lambda weight: weight.new_zeros(5),
        lambda weight: DTensor.from_local(torch.zeros(5, 4), weight.device_mesh, [Replicate()], run_check=False),
    ],
    ids=["shape", "placements"],
)
def test_an_optimizers_state_that_is_divided_in_another_way_is_refused_by_its_path(rank: int, make: Any) -> None:
    model, optimizer = build()
    step(model, optimizer)
    weight = model[0].weight
    optimizer.state[weight]["own"] = make(weight.detach())
    with pytest.raises(
        TypeError, match=r"^optimizer\[0\]\.state\['0\.weight'\]\.own: a sharded tensor is carried only"
    ):
        TrainingState([model], [optimizer]).capture()


def test_sharded_tensors_that_come_later_are_refused_by_their_path(rank: int) -> None:
    model, optimizer = build()
    average = Holds({})
    state = TrainingState([model], [optimizer])
    state.register("average", average)
    state.capture()
    sharded = {"weight": model[0].weight.detach()}
    average.state = sharded
    with pytest.raises(TypeError, match=r"^average\.weight: a sharded tensor is carried only as a parameter"):
        state.capture()
    average.state = {}
    state.user["average"] = sharded
    with pytest.raises(
        TypeError, match=r"^job\.state\.average\.weight: a sharded tensor is carried only as a parameter"
    ):
        state.capture()
    state.user.clear()
    optimizer.param_groups[0]["average"] = sharded
    with pytest.raises(TypeError, match=r"^optimizer\[0\]\.param_groups\[0\]\.average\.weight: a sharded tensor is"):
        state.capture()


def test_only_sharded_tensors_are_parts(rank: int) -> None:
    weight = build()[0][0].weight
    value = {"part": 3, "list": ["part", 1], "inner": {"a": weight}, "pair": (weight, 2), "deque": deque([weight, 5])}
    skeleton, tensors = encode(value, "value", like=weight)
    assert list(part_numbers(skeleton)) == [0, 1, 2] and len(tensors) == 3
    TrainingState().register("numbers", Holds({"part": 3}))  # a name of the script's own


def test_a_model_over_all_ranks_of_the_node_is_taken(rank: int) -> None:
    model, _ = build()
    assert is_sharded_model(model) and not is_sharded_model(nn.Linear(1, 1))
    set_up(model)


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,))
    return parallelize_module(nn.Sequential(nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})


def hybrid() -> nn.Module:
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("replicas", "parts")))
    return model


def normalized() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    fully_shard(model)
    return model


def by_columns() -> nn.Module:
    from torch.distributed.tensor import Shard

    model = nn.Linear(4, 4, bias=False)
    fully_shard(model, shard_placement_fn=lambda parameter: Shard(1))
    return model


def with_a_sharded_buffer() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    fully_shard(model)
    model[0].register_buffer("scale", model[0].weight.detach().clone())
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (tensor_parallel, "tensor parallelism is not supported"),
        (hybrid, "HSDP and tensor parallelism of your own are not supported"),
        (normalized, "1 is a BatchNorm1d, which is not supported in a sharded model"),
        (by_columns, "not sharded by its first dimension"),
        (with_a_sharded_buffer, r"^0\.scale is a sharded buffer, which is not supported"),
    ],
)
def test_what_a_job_can_not_shard_is_refused_by_name(rank: int, make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        set_up(make())


def test_a_model_over_other_ranks_than_the_nodes_is_refused(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(TypeError, match="sharded over 2 ranks, and each node of this job has 4"):
        set_up(model)
