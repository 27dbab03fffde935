"""Loads samples of a map-style data set, each with random numbers of its own, and makes batches of them.

Invariant: a sample is a function of (seed, epoch, its index), whoever loads it and beside whichever others. It holds
for what draws from Python's, numpy's and torch's global generators; a generator that the data set keeps for itself goes
on from sample to sample, so that what it draws depends on how the samples are divided.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from elastic_launcher.torch import rng
from elastic_launcher.weighted_sampling import WeightedSampling

Collate = Callable[[list[Any]], Any]


def check_dataset(dataset: object) -> None:
    """Refuses what can't be sampled by index.

    Raises:
        TypeError: For an iterable data set, or one without length or index access.
        ValueError: For an empty one.
    """
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"{name} is an IterableDataset, whose samples can't be divided exactly; give a map-style data set "
            "(__len__ and __getitem__), or elastic.lanes(open, lanes=..., lengths=...), which reads several sources "
            "forward, each from any sample on; for tar and Parquet files elastic_launcher.integrations.streams makes it"
        )
    if isinstance(dataset, DataLoader):
        raise TypeError(f"{name} is a loader already; give the data set that it reads (its attribute `dataset`)")
    missing = [] if hasattr(dataset, "__len__") else ["__len__"]
    if not _has_items(dataset) and not hasattr(dataset, "__getitems__"):
        missing.append("__getitem__")
    if missing:
        raise TypeError(f"{name} has no {' and no '.join(missing)}; give a map-style data set")
    if len(dataset) == 0:  # type: ignore[arg-type]
        raise ValueError(f"the data set ({name}) is empty; give one with at least one sample")


def _has_items(dataset: object) -> bool:
    """Says whether samples can be had one by one; torch's base class has a `__getitem__` that only raises."""
    return getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__


@dataclasses.dataclass(frozen=True)
class Fetcher:
    """Makes batches of a data set's samples.

    Attributes:
        dataset: Any map-style data set.
        collate_fn: Makes a batch of a list of samples; None for torch's default. Random numbers that it draws go on
            from those of the list's last sample: the same again for the same samples, others for another division.
        seed: What the samples' random numbers derive from.
        weighted: Draws the samples of an epoch. Indices are positions in the epoch then, also in what random numbers
            derive from: a sample that is drawn twice is augmented in two ways.
    """

    dataset: Dataset[Any]
    collate_fn: Collate | None
    seed: int
    weighted: WeightedSampling | None = None

    def fetch(self, epoch: int, indices: Sequence[int]) -> Any:
        """Returns the batch of these samples, in order; the process's own random generators stay as they were.

        In another epoch the same sample draws other random numbers.
        """
        tensors = self._tensors()
        if tensors is not None:
            return self._slice(tensors, self._drawn(epoch, indices))
        with rng.preserve():
            return self.load(epoch, indices)

    def load(self, epoch: int, indices: Sequence[int], wanted: Callable[[], bool] = lambda: True) -> Any:
        """Does what `fetch` does, but leaves the process's generators as the last sample left them.

        Before each sample it asks whether the batch is still ``wanted``; once it is not, None is returned.
        """
        tensors = self._tensors()
        if tensors is not None:
            return self._slice(tensors, self._drawn(epoch, indices))
        samples = self.samples(epoch, indices, wanted)
        return None if samples is None else (self.collate_fn or default_collate)(samples)

    @property
    def divisible(self) -> bool:
        """Whether several workers may load one batch: no function of the user's collates it, and it takes its time."""
        return self.collate_fn is None and self._tensors() is None

    def samples(self, epoch: int, indices: Sequence[int], wanted: Callable[[], bool]) -> list[Any] | None:
        """Returns a part of a `divisible` batch, for `join`; arguments as of `load`."""
        dataset: Any = self.dataset
        one_by_one, device = _has_items(dataset), rng.current_device()
        samples = []
        for place, index in zip(map(int, indices), self._drawn(epoch, indices), strict=True):
            if not wanted():
                return None
            rng.seed_all(rng.sample_seed(self.seed, epoch, place), device)
            samples.append(dataset[index] if one_by_one else dataset.__getitems__([index])[0])
        return samples

    def _drawn(self, epoch: int, indices: Sequence[int]) -> list[int]:
        if self.weighted is None:
            return list(map(int, indices))
        return cast("list[int]", self.weighted.indices(self.seed, epoch, indices[0], indices[-1] + 1).tolist())

    @staticmethod
    def join(samples: list[Any]) -> Any:
        """Returns the batch that `load` makes of these samples in a worker, where its tensors are contiguous."""

        def stack(tensors: list[torch.Tensor], **options: Any) -> Any:
            batch = default_collate_fn_map[torch.Tensor](tensors, **options)
            return batch.contiguous() if isinstance(batch, torch.Tensor) else batch

        with torch.device("cpu"):  # the script's default may be another one
            return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: stack})

    def _tensors(self) -> tuple[torch.Tensor, ...] | None:
        """Returns the tensors behind a data set that draws no random numbers and can be cut in one go, or None."""
        if self.collate_fn is not None:
            return None
        dataset: Any = self.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        if type(dataset) is not TensorDataset:
            return None
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in dataset.tensors)
        return dataset.tensors if plain else None

    def _slice(self, tensors: tuple[torch.Tensor, ...], indices: Sequence[int]) -> list[torch.Tensor]:
        """Cuts a batch out of tensors; a list, as torch's default collating makes one of tuples."""
        dataset: Any = self.dataset
        while type(dataset) is Subset:
            indices, dataset = [int(dataset.indices[index]) for index in indices], dataset.dataset
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return [tensor[chosen].contiguous() for tensor in tensors]


def batch_to_device(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Returns a batch whose tensors are on a device; in containers, and in objects that have a method ``to``."""
    if device.type == "cpu":
        return batch
    return _changed(
        batch, lambda tensor: tensor.to(device, non_blocking=non_blocking), "to", lambda thing: thing.to(device)
    )


def pin(batch: Any) -> Any:
    """Returns a batch whose tensors are in pinned memory; also in objects that have a method ``pin_memory``."""
    return _changed(batch, lambda tensor: tensor.pin_memory(), "pin_memory", lambda thing: thing.pin_memory())


def _changed(batch: Any, change: Callable[[torch.Tensor], torch.Tensor], method: str, ask: Callable[[Any], Any]) -> Any:
    """Applies a function to the tensors of a nested batch; an object that has a method for it is asked to do it."""

    def walk(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return change(thing)
        if callable(getattr(thing, method, None)):
            return ask(thing)
        if isinstance(thing, Mapping):
            return _same_mapping(thing, {key: walk(value) for key, value in thing.items()})
        if isinstance(thing, tuple) and hasattr(thing, "_fields"):
            return type(thing)(*map(walk, thing))
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(walk, thing))  # type: ignore[call-arg]
        return thing

    return walk(batch)


def _same_mapping(old: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Returns a mapping of the old one's type, which may hold more than its items (a default, say)."""
    if type(old) is dict:
        return values
    try:
        if isinstance(old, MutableMapping):
            new = copy.copy(old)
            new.update(values)
            return new
        return type(old)(values)  # type: ignore[call-arg]
    except TypeError:  # it can't be made that way
        return values
