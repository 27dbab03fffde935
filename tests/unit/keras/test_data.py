"""What `fit` reads, and what it refuses by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.data import read, split

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


class InBatches(keras.utils.PyDataset):  # type: ignore[misc] # Keras has no types
    """Batches of given sizes."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.ends = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, number: int) -> Any:
        cut = slice(self.ends[number], self.ends[number + 1])
        return X[cut], Y[cut]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


def samples(x: Any, y: Any = None, weights: Any = None, classes: Any = None, *, shuffle: bool = False) -> list[Any]:
    data = read(x, y, weights, classes, shuffle, 4)
    return [data.dataset[index] for index in range(len(data.dataset))]  # type: ignore[arg-type]


def test_arrays_become_samples_with_keras_own_type_of_floats() -> None:
    third = samples(X, Y)[3]
    assert [one.tolist() for one in third] == [[6.0, 7.0], 3]
    assert [one.dtype for one in third] == [torch.float32, torch.int64]


def test_arrays_that_are_read_backwards() -> None:
    x = np.arange(6.0).reshape(3, 2)
    data = read(x[::-1], np.flip(np.arange(3)), None, None, False, 2)
    assert [sample[0].tolist() for sample in data.dataset] == [[4, 5], [2, 3], [0, 1]]  # type: ignore[attr-defined]
    assert [int(sample[1]) for sample in data.dataset] == [2, 1, 0]  # type: ignore[attr-defined]


def test_arrays_in_lists_and_dicts_keep_their_structure() -> None:
    inputs, target = samples({"a": X, "b": [Y, torch.tensor(Y)]}, Y)[2]
    assert inputs["a"].tolist() == [4.0, 5.0]
    assert [one.item() for one in inputs["b"]] == [2, 2]
    assert target == 2


@pytest.mark.parametrize("targets", [Y % 3, (Y % 3)[:, None], np.eye(3)[Y % 3]])
def test_class_weights_become_sample_weights(targets: np.ndarray) -> None:
    found = [sample[2].item() for sample in samples(X, targets, None, {0: 0.5, 2: 2.0})]
    assert found == pytest.approx([(0.5, 1.0, 2.0)[one % 3] for one in Y])


def test_a_loader_gives_its_data_set_order_and_options() -> None:
    loader = DataLoader(TensorDataset(torch.tensor(X)), batch_size=5, shuffle=True, drop_last=True)
    data = read(loader, None, None, None, False, 4)
    assert (data.dataset, data.shuffle, data.options["drop_last"]) == (loader.dataset, True, True)


def test_a_py_dataset_of_global_batches_gives_their_samples() -> None:
    assert [sample[1].item() for sample in samples(InBatches(4, 4, 2))] == list(range(10))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: samples(iter([X])), TypeError, "only be read forward"),
        (lambda: samples(Stream()), TypeError, "only be read forward"),
        (lambda: samples(DataLoader(Stream())), TypeError, "only be read forward"),
        (lambda: samples(TensorDataset(torch.tensor(X))), TypeError, "torch DataLoader"),
        (lambda: samples(DataLoader(X, sampler=WeightedRandomSampler([1.0] * 10, 10))), TypeError, "sampler="),
        (lambda: samples(DataLoader(X, batch_sampler=[[0], [1]])), TypeError, "batch_sampler="),
        (lambda: samples(DataLoader(X, sampler=RandomSampler(X, num_samples=3))), TypeError, "RandomSampler"),
        (lambda: samples(DataLoader(X), Y), ValueError, "y can't be given"),
        (lambda: samples(InBatches(4, 3, 3)), ValueError, "batch 1 of the PyDataset has 3 samples.*global batch, 4"),
        (lambda: samples(InBatches(3, 3, 4)), ValueError, "batch 0 of the PyDataset has 3"),
        (lambda: samples(InBatches(4, 4), shuffle=True), ValueError, "shuffle=False"),
        (lambda: samples(X, Y[:9]), ValueError, r"\[9, 10\]"),
        (lambda: samples(X, None, Y), ValueError, "needs y"),
        (lambda: samples(X, Y, Y, {0: 1.0}), ValueError, "class_weight and sample_weight"),
        (lambda: samples([], None), ValueError, "no data"),
    ],
)
def test_what_cannot_be_shared_among_ranks_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_lists_of_numbers_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"single numbers in the place of arrays.*numpy\.asarray\(x\)"):
        read([[1.0, 2.0], [3.0, 4.0]], np.zeros(2), None, None, False, 2)


def test_a_split_takes_the_last_samples_for_validation() -> None:
    (x, y, weights), (held_x, held_y, _) = split((X, Y, None), 0.2)
    assert (len(x), len(held_x), y.tolist(), held_y.tolist(), weights) == (8, 2, list(range(8)), [8, 9], None)
    with pytest.raises(ValueError, match="leaves nothing"):
        split((X, Y, None), 0.99)
