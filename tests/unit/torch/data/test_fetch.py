from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from elastic_launcher.torch import rng
from elastic_launcher.torch.data.fetch import Fetcher, batch_to_device, check_dataset, pin

META = torch.device("meta")


class Augmented(Dataset[Any]):
    """Samples that depend on every generator."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, float, float, torch.Tensor]:
        noise = float(np.random.randn())
        return index, random.random(), noise, torch.rand(2)


class Batched(Dataset[Any]):
    """Gives samples by the list alone, and remembers the lists."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 40

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        self.asked.append(indices)
        return [(index, random.random()) for index in indices]


def rows(fetcher: Fetcher, epoch: int, indices: list[int]) -> list[tuple[Any, ...]]:
    """The samples of a batch, one by one."""
    index, drawn, noise, tensor = fetcher.fetch(epoch, indices)
    return list(zip(index.tolist(), drawn.tolist(), noise.tolist(), tensor.tolist(), strict=True))


def test_a_sample_does_not_depend_on_what_it_is_loaded_with() -> None:
    fetcher = Fetcher(Augmented(), None, seed=7)
    indices = [31, 4, 15, 9, 26, 5]
    together = rows(fetcher, 2, indices)
    assert [rows(fetcher, 2, [index])[0] for index in indices] == together
    assert rows(fetcher, 2, indices[:4]) + rows(fetcher, 2, indices[4:]) == together


@pytest.mark.parametrize("dataset", [Augmented(), Batched(), Subset(Augmented(), range(5, 30))])
def test_samples_loaded_apart_make_the_same_batch(dataset: Dataset[Any]) -> None:
    fetcher, indices = Fetcher(dataset, None, seed=7), [3, 1, 4, 15, 9]
    parts = [fetcher.samples(2, part, lambda: True) or [] for part in (indices[:2], indices[2:])]
    with torch.device("meta"):  # whatever the script's default is
        batch = Fetcher.join([*parts[0], *parts[1]])
    for column, expected in zip(batch, fetcher.fetch(2, indices), strict=True):
        assert torch.equal(column, expected)


def test_samples_that_nobody_wants_any_more_are_no_batch() -> None:
    wanted = iter([True, True, False])
    assert Fetcher(Augmented(), None, seed=7).samples(2, [3, 1, 4], lambda: next(wanted)) is None


def test_only_what_torch_collates_sample_by_sample_is_divisible() -> None:
    tensors = TensorDataset(torch.arange(40))
    assert Fetcher(Augmented(), None, 7).divisible and Fetcher(Subset(Augmented(), range(5)), None, 7).divisible
    assert not any(
        Fetcher(dataset, collate_fn, 7).divisible
        for dataset, collate_fn in [(Augmented(), default_collate), (tensors, None), (Subset(tensors, range(5)), None)]
    )


@pytest.mark.parametrize(("seed", "epoch"), [(8, 2), (7, 3)])
def test_another_seed_or_epoch_gives_other_samples(seed: int, epoch: int) -> None:
    (expected,) = rows(Fetcher(Augmented(), None, seed=7), 2, [4])
    (drawn,) = rows(Fetcher(Augmented(), None, seed), epoch, [4])
    assert drawn[0] == expected[0] and all(a != b for a, b in zip(drawn[1:], expected[1:], strict=True))


@pytest.mark.parametrize("dataset", [Augmented(), Subset(Augmented(), range(5, 30)), ConcatDataset([Augmented()])])
def test_the_processs_own_generators_stay_as_they_were(dataset: Dataset[Any]) -> None:
    rng.seed_all(1)
    with rng.preserve():
        expected = random.random(), np.random.rand(), torch.rand(()).item()
    Fetcher(dataset, None, seed=7).fetch(0, [1, 2, 3])
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_collating_draws_the_same_for_the_same_samples() -> None:
    fetcher = Fetcher(Augmented(), lambda samples: (len(samples), random.random(), torch.rand(()).item()), seed=7)
    assert fetcher.fetch(0, [1, 2]) == fetcher.fetch(0, [1, 2])
    assert fetcher.fetch(0, [1, 2]) != fetcher.fetch(0, [1, 3])


def test_a_data_set_that_gives_lists_alone_is_asked_for_one_sample_at_a_time() -> None:
    dataset = Batched()
    check_dataset(dataset)
    index, drawn = Fetcher(dataset, None, seed=7).fetch(0, [3, 1])
    assert dataset.asked == [[3], [1]]
    assert index.tolist() == [3, 1] and len(set(drawn.tolist())) == 2


def test_indices_reach_the_data_set_as_plain_numbers() -> None:
    batch = Fetcher(["a", "b", "c"], list, 0).fetch(0, np.array([2, 0]))  # type: ignore[arg-type]
    assert batch == ["c", "a"]


TENSORS = TensorDataset(torch.randn(20, 3, 2), torch.arange(20), torch.rand(20, dtype=torch.float64) < 0.5)


@pytest.mark.parametrize(
    "dataset",
    [
        TENSORS,
        Subset(TENSORS, [3, 1, 4, 15, 9, 2, 6]),
        Subset(Subset(TENSORS, range(2, 20)), torch.tensor([5, 3, 11, 0, 7, 8])),  # type: ignore[arg-type]
        Subset(TENSORS, np.arange(19, -1, -1)),  # type: ignore[arg-type]
        TensorDataset(torch.randn(20, 4, 5, 6).to(memory_format=torch.channels_last)),
    ],
    ids=["tensors", "subset", "nested", "array", "channels_last"],
)
def test_tensors_cut_in_one_go_are_what_single_samples_make(dataset: Dataset[Any]) -> None:
    indices = [5, 0, 2, 2]
    fast = Fetcher(dataset, None, 0).fetch(0, indices)
    slow = default_collate([dataset[index] for index in indices])
    assert type(fast) is type(slow) and len(fast) == len(slow)
    for mine, theirs in zip(fast, slow, strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride() and torch.equal(mine, theirs)


def test_a_kind_of_tensor_data_set_that_may_augment_is_asked_for_each_sample() -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return tuple(tensor + 1 for tensor in super().__getitem__(index))

    (batch,) = Fetcher(Noisy(torch.zeros(5)), None, 0).fetch(0, [0, 1])
    assert batch.tolist() == [1, 1]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Unmeasured(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Nothing(Dataset[int]):
    pass


@pytest.mark.parametrize(
    ("dataset", "kind", "says"),
    [
        (Stream(), TypeError, "Stream is an IterableDataset.*give a map-style data set"),
        (Unmeasured(), TypeError, "Unmeasured has no __len__; give a map-style"),
        (Nothing(), TypeError, "Nothing has no __len__ and no __getitem__"),
        ({1, 2}, TypeError, "set has no __getitem__"),
        (DataLoader(TENSORS), TypeError, "DataLoader is a loader already; give the data set"),
        ([], ValueError, "the data set .list. is empty"),
        (Subset(TENSORS, []), ValueError, "the data set .Subset. is empty"),
    ],
)
def test_a_data_set_that_has_no_samples_by_number_is_refused(dataset: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        check_dataset(dataset)


@pytest.mark.parametrize("dataset", [Augmented(), Batched(), [1, 2], "text", np.zeros(3), TENSORS])
def test_a_data_set_with_samples_by_number_is_taken(dataset: Any) -> None:
    check_dataset(dataset)
    assert len(dataset) > 0


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


class Options(dict[str, Any]):
    """A mapping with more to it than its items."""

    extra = None


def test_the_tensors_of_a_nested_batch_go_to_the_device() -> None:
    options = Options(x=torch.ones(2))
    options.extra = 5  # type: ignore[assignment]
    default: Any = collections.defaultdict(list, x=torch.ones(2))
    batch = {
        "list": [torch.ones(2), "text", 3],
        "tuple": (torch.ones(2), None),
        "pair": Pair(torch.ones(2), "name"),
        "options": options,
        "default": default,
        "array": np.ones(2),
    }
    moved = batch_to_device(batch, META)
    assert moved["list"][0].device == META and moved["list"][1:] == ["text", 3]
    assert moved["tuple"][0].device == META and moved["tuple"][1] is None
    assert type(moved["pair"]) is Pair and moved["pair"].x.device == META and moved["pair"].name == "name"
    assert type(moved["options"]) is Options and moved["options"].extra == 5
    assert moved["options"]["x"].device == META and options["x"].device.type == "cpu"
    assert moved["default"].default_factory is list and moved["default"]["x"].device == META
    assert moved["array"] is batch["array"]


def test_an_object_that_can_move_itself_is_asked_to() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = batch_to_device([packed], META)[0]
    assert type(moved) is PackedSequence and moved.data.device == META and moved.batch_sizes.device.type == "cpu"


def test_a_batch_for_the_cpu_is_left_as_it_is() -> None:
    batch = [torch.ones(2)]
    assert batch_to_device(batch, torch.device("cpu")) is batch


def test_a_batch_is_pinned_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)  # no GPU, no pinned memory
    batch = pin({"x": torch.zeros(1), "y": [torch.zeros(1), "text"]})
    assert batch["x"].item() == 1 and batch["y"][0].item() == 1 and batch["y"][1] == "text"
