"""Where a loader's samples come from: a map-style data set, in order, shuffled or drawn by weight; or lanes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset

from elastic_launcher import sampling
from elastic_launcher.lane_order import LaneOrder
from elastic_launcher.torch.data.fetch import Collate, Fetcher, check_dataset
from elastic_launcher.torch.data.lane_reader import LaneFetcher, LaneReader
from elastic_launcher.torch.data.lane_workers import LaneWorkers
from elastic_launcher.torch.data.lanes import Lanes, lane_order
from elastic_launcher.torch.data.worker_pool import WorkerPool
from elastic_launcher.weighted_sampling import WeightedSampling


@dataclass(frozen=True)
class Weights:
    """How a loader draws by weight; the arguments of `Job.dataloader`."""

    weights: Any = None
    num_samples: int | None = None
    replacement: bool = True

    def sampling(self, dataset: object, shuffle: bool) -> WeightedSampling | None:
        """Returns what an epoch draws, or None without weights.

        Raises:
            TypeError: For lanes, or for what needs weights without them.
            ValueError: If there is not one for each sample, one can't be a weight, or they don't go with the rest.
        """
        if self.weights is None:
            if self.num_samples is not None or not self.replacement:
                raise TypeError("job.dataloader takes num_samples= and replacement= only together with weights=")
            return None
        if isinstance(dataset, Lanes):
            raise TypeError(
                "job.dataloader takes no weights= for lanes, which are read forward; weight the loss instead"
            )
        if shuffle:
            raise ValueError("weights= draw in a random order already; leave shuffle=True out")
        found = WeightedSampling(self.weights, self.num_samples, self.replacement)
        samples = len(cast(Sized, dataset))
        if len(found.weights) != samples:
            raise ValueError(f"there are {len(found.weights)} weights and {samples} samples; give one for each sample")
        return found


class Source:
    """The samples of a loader, by their positions in an epoch.

    Args:
        dataset: A map-style data set, or lanes.
        seed: What order and random numbers derive from.
        shuffle: Whether each epoch has an order of its own.
        weights: What to draw by.
        batch: The global batch with which the training begins, by which lanes are arranged.
        collate_fn: Makes a batch of a list of samples; None for torch's default.

    Attributes:
        name: What messages call it.
        size: Samples of an epoch.
        permutes: Whether positions are indices of the data set in a shuffled order.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Lanes,
        *,
        seed: int,
        shuffle: bool,
        weights: Weights,
        batch: int,
        collate_fn: Collate | None,
    ) -> None:
        self._lanes: LaneOrder | None = None
        self.fetcher: Fetcher | LaneFetcher
        if not isinstance(dataset, Lanes):
            check_dataset(dataset)
        weighted = weights.sampling(dataset, shuffle)
        if isinstance(dataset, Lanes):
            self.name, self.size = dataset.name, len(dataset)
            self._lanes = lane_order(dataset, batch)
            self.fetcher = LaneFetcher(LaneReader(dataset, self._lanes, seed, shuffle), collate_fn)
        else:
            self.name, self.size = type(dataset).__name__, len(cast(Sized, dataset))
            self.fetcher = Fetcher(dataset, collate_fn, seed, weighted)
        if weighted is not None:
            drawn = zlib.crc32(weighted.weights.tobytes(), int(weighted.replacement))
            self.name, self.size = f"{self.name} by weights {drawn:08x}", weighted.num_samples
        self.permutes = shuffle and self._lanes is None

    def workers(
        self, num_workers: int, worker_init_fn: Callable[[int], None] | None
    ) -> WorkerPool | LaneWorkers | None:
        """Starts processes that load ahead; None for 0 of them."""
        if not num_workers:
            return None
        if isinstance(self.fetcher, Fetcher):
            return WorkerPool(self.fetcher, num_workers, worker_init_fn=worker_init_fn)
        assert self._lanes is not None
        return LaneWorkers(self.fetcher, self._lanes, num_workers, worker_init_fn=worker_init_fn)

    def order(self, seed: int, epoch: int, start: int, stop: int) -> sampling.Indices:
        """Returns by what the samples at some positions of an epoch are fetched.

        Those are indices of a data set; else, where samples are drawn by weight or read from lanes, the positions.
        """
        if not self.permutes:
            return np.arange(start, stop, dtype=np.int64)
        return sampling.indices(self.size, seed, epoch, start, stop)
