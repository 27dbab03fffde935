"""Loads samples of a map-style data set, each with random numbers of its own, and makes batches of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate

from elastic_launcher.torch import rng

Collate = Callable[[list[Any]], Any]


def check_dataset(dataset: object) -> None:
    """Refuses what can't be sampled by index.

    Raises:
        TypeError: For an iterable data set, or one without length or index access.
        ValueError: For an empty one.
    """
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"{type(dataset).__name__} is an IterableDataset, whose samples can't be divided exactly; "
            "give a map-style data set (__len__ and __getitem__)"
        )
    missing = [name for name in ("__len__",) if not hasattr(dataset, name)]
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__getitems__"):
        missing.append("__getitem__")
    if missing:
        raise TypeError(f"{type(dataset).__name__} has no {' and no '.join(missing)}; give a map-style data set")
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise ValueError(f"the data set ({type(dataset).__name__}) is empty")


def _tensors(dataset: object) -> TensorDataset | None:
    """Returns the tensors behind a data set that draws no random numbers, or None."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset if type(dataset) is TensorDataset else None


@dataclasses.dataclass(frozen=True)
class Fetcher:
    """Makes batches of a data set's samples.

    Attributes:
        dataset: Any map-style data set.
        collate_fn: Makes a batch of a list of samples; None for torch's default.
        seed: What the samples' random numbers derive from.
    """

    dataset: Dataset[Any]
    collate_fn: Collate | None
    seed: int

    def fetch(self, epoch: int, indices: Sequence[int]) -> Any:
        """Returns the batch of these samples; the process's own random generators stay as they were.

        Args:
            epoch: In another epoch the same sample draws other random numbers.
            indices: Which samples, in order.
        """
        source = _tensors(self.dataset) if self.collate_fn is None else None
        if source is not None:
            return self._slice(source, indices)
        with rng.preserve():
            samples = [self._sample(epoch, int(index)) for index in indices]
            return (self.collate_fn or default_collate)(samples)

    def _slice(self, source: TensorDataset, indices: Sequence[int]) -> Any:
        chosen = torch.as_tensor(indices)
        dataset: Any = self.dataset
        while type(dataset) is Subset:
            chosen = torch.as_tensor(dataset.indices)[chosen]
            dataset = dataset.dataset
        return [tensor[chosen] for tensor in source.tensors]

    def _sample(self, epoch: int, index: int) -> Any:
        rng.seed_all(rng.sample_seed(self.seed, epoch, index))
        dataset: Any = self.dataset
        return dataset[index] if hasattr(dataset, "__getitem__") else dataset.__getitems__([index])[0]


def _map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies a function to the tensors of a nested batch."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return type(batch)({key: _map_tensors(value, change) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map_tensors(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        values: Iterable[Any] = (_map_tensors(value, change) for value in batch)
        return type(batch)(values)
    return batch


def batch_to_device(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Moves the tensors of a batch to a device."""
    if device.type == "cpu":
        return batch
    return _map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def pin(batch: Any) -> Any:
    """Puts the tensors of a batch into pinned memory."""
    return _map_tensors(batch, lambda tensor: tensor.pin_memory())
