"""What one of torch's own loaders says of its data, for `job.dataloader`."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

FORWARD = "which can only be read forward: each rank needs samples of its own, at any number of ranks"


@dataclass(frozen=True)
class Data:
    """What `job.dataloader` makes a loader of.

    Attributes:
        dataset: The samples.
        shuffle: Whether each epoch has an order of its own.
        options: More arguments of `job.dataloader`.
    """

    dataset: Dataset[Any]
    shuffle: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def read_loader(loader: DataLoader[Any]) -> Data:
    """Returns the data of a loader, in its order or shuffled; how large its batches are is left to the job.

    Raises:
        TypeError: For an iterable data set, samplers that the job can't follow, and workers that are not forked.
    """
    dataset, sampler = loader.dataset, loader.sampler
    if isinstance(dataset, IterableDataset):
        raise TypeError(f"the DataLoader has a {type(dataset).__name__}, {FORWARD}; give a map-style data set")
    usual = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    chosen: Any = getattr(sampler, "data_source", dataset)
    if usual and chosen is not dataset and len(chosen) != (samples := len(cast(Sized, dataset))):
        raise TypeError(
            f"the DataLoader's {type(sampler).__name__} is over {len(chosen)} samples, and its data set has "
            f"{samples}; to train on a part of them, give torch's Subset as the data set"
        )
    if not usual or loader.batch_size is None:
        odd = sampler if loader.batch_size is not None else loader.batch_sampler
        raise TypeError(
            f"the DataLoader has a {type(odd).__name__}; the job decides which samples come when: leave sampler= and "
            "batch_sampler= out, and say shuffle=True or False"
        )
    workers: Any = loader.multiprocessing_context
    if workers is not None and (start := workers.get_start_method()) != "fork":
        raise TypeError(
            f"the DataLoader starts its workers by {start!r}; those of a job are forked when its loader is made: leave "
            "multiprocessing_context= out"
        )
    options: dict[str, Any] = {"drop_last": loader.drop_last, "num_workers": loader.num_workers}
    options |= {"collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory, "timeout": loader.timeout}
    if loader.worker_init_fn is not None:
        options["worker_init_fn"] = loader.worker_init_fn
    if loader.prefetch_factor is not None:
        options["prefetch_factor"] = loader.prefetch_factor
    if loader.collate_fn is torch.utils.data.default_collate:
        del options["collate_fn"]
    return Data(dataset, isinstance(sampler, RandomSampler), options)
