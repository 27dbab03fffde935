"""A checkpoint that the ranks of a node write in parts loads on nodes of any size, and as a whole."""

from __future__ import annotations

import json
import queue
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from elastic_launcher.checkpoint import Mark, find_newest
from elastic_launcher.checkpoint.shards import read_shards
from elastic_launcher.torch.shard.part_files import write_when_asked
from elastic_launcher.torch.shard.tensors import as_shard, is_sharded, local, rows_of
from elastic_launcher.torch.state.checkpoint_writer import load
from elastic_launcher.torch.state.export import gather
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from tests.support.checkpoints import JOB
from tests.support.training_states import POSITION, Outcome

WRITERS = 2


class Node:
    """What the ranks of a node send each other, in one process."""

    def __init__(self, local_rank: int, boxes: list[queue.Queue[bytes]]) -> None:
        self.local_rank, self.size, self._boxes = local_rank, len(boxes), boxes

    def send(self, data: bytes, rank: int) -> None:
        self._boxes[rank].put(data)

    def receive(self, rank: int) -> bytes:
        return self._boxes[self.local_rank].get(timeout=30)


@contextmanager
def on_node(rank: int, size: int) -> Iterator[None]:
    """This process as a rank of a node of so many."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def build(seed: int, sharded: bool = True) -> TrainingState:
    """Returns a training whose parameters and optimizer state are all different."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1)).double()
    if sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return TrainingState([model], [optimizer])


def step(state: TrainingState) -> None:
    for parameter in state.models[0].parameters():
        whole = torch.arange(parameter.numel(), dtype=torch.float64).view(parameter.shape)
        rows = rows_of(parameter, len(whole))
        parameter.grad = as_shard(parameter, whole[rows.start : rows.stop].contiguous())
    state.optimizers[0].step()


def tensors_of(state: TrainingState) -> list[torch.Tensor]:
    moments = [state.optimizers[0].state[p][name] for p in state.models[0].parameters() for name in ("exp_avg",)]
    return [*state.models[0].parameters(), *moments]


def save(folder: Path, train: Callable[[TrainingState], None] = step) -> tuple[Path, Any]:
    """Saves a checkpoint of a node of two, whose last rank has an empty part."""
    boxes: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(WRITERS)]
    outcome, another = Outcome(folder), Outcome(folder)
    with on_node(1, WRITERS):
        other = build(0)
        train(other)
        another.saver.assist(other, Node(1, boxes))  # type: ignore[arg-type]
    with on_node(0, WRITERS):
        first = build(0)
        train(first)
        outcome.saver.save(first, POSITION, JOB, Mark(1, 1, 21), 2, node=Node(0, boxes))  # type: ignore[arg-type]
        outcome.saver.wait()
    another.saver.wait()
    assert not outcome.failed and len(outcome.saved) == 1
    found = find_newest(folder)
    assert found.folder is not None and found.manifest is not None
    return found.folder, found.manifest


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """A checkpoint of a node of two."""
    return save(tmp_path)


def whole() -> list[torch.Tensor]:
    state = build(0, sharded=False)
    step(state)
    return [tensor.detach() for tensor in tensors_of(state)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_rank_of_a_node_of_any_size_reads_its_rows(saved: tuple[Path, Any], size: int) -> None:
    for rank in range(size):
        with on_node(rank, size):
            state = build(seed=1)
            assert load(*saved, state) == POSITION
            for tensor, wanted in zip(tensors_of(state), whole(), strict=True):
                rows = rows_of(tensor, len(wanted))
                assert is_sharded(tensor) and torch.equal(local(tensor).detach(), wanted[rows.start : rows.stop])
            step(state)


def test_no_rank_reads_a_part_without_a_row_of_its_own(
    saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[int] = set()

    def note(*arguments: Any) -> Iterator[tuple[int, torch.Tensor]]:
        for number, tensor in read_shards(*arguments):
            read.add(number)
            yield number, tensor

    monkeypatch.setattr("elastic_launcher.torch.state.checkpoint_writer.read_shards", note)
    folder, manifest = saved
    with on_node(1, WRITERS):
        load(folder, manifest, build(seed=1))
    parts = [entries for _, _, entries in json.loads((folder / "state.json").read_text())["parts"]]
    assert not read & {first for first, _ in parts}
    assert {last for _, last in parts if manifest.tensors[last].shape[0]} <= read


def test_two_names_of_one_memory_are_written_once_and_both_read(tmp_path: Path) -> None:
    def train(state: TrainingState) -> None:
        step(state)
        for values in state.optimizers[0].state.values():
            values["again"] = values["exp_avg"]

    folder, manifest = save(tmp_path, train)
    with safe_open(folder / "part1-00001.safetensors", framework="pt") as file:
        assert len(file.keys()) == 2 * 3 + 2 * 4  # empty parts share nothing
    with on_node(0, 1):
        state = build(seed=1)
        load(folder, manifest, state)
        for values in state.optimizers[0].state.values():
            assert torch.equal(local(values["again"]), local(values["exp_avg"]))


def test_a_renamed_layer_is_named(saved: tuple[Path, Any]) -> None:
    with on_node(0, WRITERS):
        model = nn.Sequential(OrderedDict(first=nn.Linear(4, 5), last=nn.Linear(5, 1))).double()
        fully_shard(model)
        state = TrainingState([model], [torch.optim.AdamW(model.parameters(), lr=0.1)])
        with pytest.raises(StateMismatch, match=r"parameter first\.weight is only on this rank"):
            load(*saved, state)


def test_a_model_that_is_not_sharded_reads_all(saved: tuple[Path, Any]) -> None:
    state = build(seed=1, sharded=False)
    load(*saved, state)
    for tensor, wanted in zip(tensors_of(state), whole(), strict=True):
        assert torch.equal(tensor.detach(), wanted)
    step(state)


def test_a_sharded_model_does_not_take_a_whole_one(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path)
    state = build(0, sharded=False)
    step(state)
    outcome.saver.save(state, POSITION, JOB, Mark(1, 1, 21), 2)
    outcome.saver.wait()
    found = find_newest(tmp_path)
    assert found.folder is not None and found.manifest is not None
    with (
        on_node(0, 2),
        pytest.raises(StateMismatch, match=r"0\.weight is float64\[3, 4\] on this rank and float64\[5, 4\]"),
    ):
        load(found.folder, found.manifest, build(seed=1))


def test_other_tools_get_the_whole(saved: tuple[Path, Any]) -> None:
    found = gather(*saved)
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    tensors = [found["model"][name] for name in names]
    tensors += [found["optimizers"][0]["state"][name]["exp_avg"] for name in names]
    for tensor, wanted in zip(tensors, whole(), strict=True):
        assert torch.equal(tensor, wanted)


def test_no_rank_writes_what_another_one_holds(saved: tuple[Path, Any]) -> None:
    folder, manifest = saved
    header = json.loads((folder / "state.json").read_text())
    for _, rows, entries in header["parts"]:
        shards = [manifest.tensors[entry] for entry in entries]
        assert [entry.shard for entry in shards] == ["tensors-00001.safetensors", "part1-00001.safetensors"]
        assert sum(entry.shape[0] for entry in shards) == rows
    assert manifest.size == sum((folder / file.name).stat().st_size for file in manifest.files)


def test_what_another_rank_can_not_write_fails_the_save(tmp_path: Path) -> None:
    boxes: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(WRITERS)]
    outcome = Outcome(tmp_path)
    boxes[0].put(json.dumps({"error": ["no space left"]}).encode())
    with on_node(0, WRITERS):
        outcome.saver.save(build(0), POSITION, JOB, Mark(1, 1, 21), 2, node=Node(0, boxes))  # type: ignore[arg-type]
        outcome.saver.wait()
    assert outcome.failed == [(21, "no space left")] and not find_newest(tmp_path).folder
    assert boxes[1].qsize() == 1  # it was asked once


def test_a_rank_that_has_no_memory_for_its_copy_says_so(tmp_path: Path) -> None:
    boxes: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(WRITERS)]
    outcome = Outcome(tmp_path)
    with on_node(1, WRITERS):
        other = build(0)
        other.user["large"] = torch.zeros(1).expand(1 << 50)
        outcome.saver.assist(other, Node(1, boxes))  # type: ignore[arg-type]
    boxes[1].put(str(tmp_path).encode())
    outcome.saver.wait()
    assert "memory" in json.loads(boxes[0].get(timeout=30))["error"][0]
    assert not list(tmp_path.glob("part*"))


def test_a_rank_that_can_not_write_for_another_reason_answers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_shards(*arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("elastic_launcher.torch.shard.part_files.write_shards", write_shards)
    boxes: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(WRITERS)]
    boxes[1].put(str(tmp_path).encode())
    write_when_asked(Node(1, boxes), [torch.ones(1)])  # type: ignore[arg-type]
    assert json.loads(boxes[0].get(timeout=30)) == {"error": ["MemoryError: no room"]}
