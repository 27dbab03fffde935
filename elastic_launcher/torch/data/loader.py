"""The training script's data loader: any map-style data set, in the order of (seed, epoch, step), in micro-batches of
this rank's share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from elastic_launcher import batch as batching
from elastic_launcher import sampling
from elastic_launcher.torch.data.fetch import Fetcher, batch_to_device, check_dataset, pin
from elastic_launcher.torch.data.workers import WorkerPool

Piece = tuple[int, int, int]
"""A micro-batch: epoch, its first sample's place in the epoch's order, number of samples."""

OPTIONS = ("drop_last", "num_workers", "collate_fn", "pin_memory", "prefetch_factor", "worker_init_fn", "timeout")
REFUSED = {
    "sampler": "the job decides which samples come when; use shuffle= and seed=",
    "batch_sampler": "the job decides which samples come when; use shuffle= and seed=",
    "batch_size": "micro-batches follow from global_batch_size and max_batch_per_gpu of init()",
    "generator": "random numbers derive from seed=",
    "multiprocessing_context": "workers are forked when the loader is made; leave it out",
}


REFUSED_VALUES = {
    "persistent_workers": (False, "workers always live on across epochs and resizes; leave it out, or say True"),
}
"""Options that are taken for any other value."""


class ElasticLoader:
    """Gives this rank's micro-batches of each optimizer step; made by `Job.dataloader`.

    Args:
        dataset: Any map-style data set.
        global_batch_size: Samples of an optimizer step, over all ranks.
        device: Where batches go.
        train: Runs the training loop over a loader.
        epoch: The epoch in which it is made; None before the first one.
        shuffle: Whether each epoch has an order of its own.
        seed: What the order derives from.
        drop_last: Whether an epoch's incomplete last step is left out.
        num_workers: Processes that load ahead; 0 loads in the training thread.
        collate_fn: Makes a batch of a list of samples; torch's default without it.
        pin_memory: Whether batches are pinned before they go to a GPU.
        prefetch_factor: Micro-batches that each worker loads ahead.
        worker_init_fn: Called with its number in each worker.
        timeout: Seconds after which a batch that does not come is an error; 0 waits.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        global_batch_size: int,
        device: torch.device,
        train: Callable[[ElasticLoader], Iterator[Any]],
        epoch: int | None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0.0,
    ) -> None:
        check_dataset(dataset)
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(
                f"num_workers is {num_workers} and prefetch_factor {prefetch_factor}; they must be at least 0 and 1"
            )
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.size = len(cast(Sized, dataset))
        self.epoch = epoch
        self._global_batch_size = global_batch_size
        self._device = device
        self._train = train
        self._pin = pin_memory and device.type == "cuda"
        self._timeout = timeout or None
        self._fetcher = Fetcher(dataset, collate_fn, seed)
        self._pool = WorkerPool(self._fetcher, num_workers, worker_init_fn=worker_init_fn) if num_workers else None
        self._ahead = num_workers * prefetch_factor
        self._asked: set[Piece] = set()
        self._taken: Piece | None = None  # by the training thread at the moment
        self._lock = threading.RLock()
        self._order = lru_cache(maxsize=16)(self._order_of_step)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"the data set has {self.size} samples, fewer than one global batch of {global_batch_size}, "
                "and drop_last leaves none of it"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return batching.steps_per_epoch(self.size, self._global_batch_size, self.drop_last)

    def __len__(self) -> int:
        raise TypeError(
            "a loader of job.dataloader has no length in batches: how many micro-batches this rank gets depends on the "
            "number of ranks. loader.steps_per_epoch is the number of optimizer steps, len(dataset) that of samples"
        )

    def __bool__(self) -> bool:
        return True

    def step_size(self, step_in_epoch: int) -> int:
        """Returns how many samples a step has, over all ranks."""
        return batching.step_size(self.size, self._global_batch_size, step_in_epoch, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        """Runs the training loop over this loader from where the job stands."""
        return self._train(self)

    def _order_of_step(self, epoch: int, step: int) -> np.ndarray:
        return sampling.step_indices(
            self.size, self._global_batch_size, self.seed, epoch, step, self.shuffle, self.drop_last
        )

    def _indices(self, piece: Piece) -> list[int]:
        epoch, start, count = piece
        step, offset = divmod(start, self._global_batch_size)
        if offset + count <= self._global_batch_size:
            return cast("list[int]", self._order(epoch, step)[offset : offset + count].tolist())
        return cast(
            "list[int]", sampling.indices(self.size, self.seed, epoch, start, start + count, self.shuffle).tolist()
        )

    def take(self, piece: Piece) -> Any:
        """Returns a micro-batch, on the job's device."""
        if self._pool is None:
            batch = self._fetcher.fetch(piece[0], self._indices(piece))
        else:
            with self._lock:
                self._ask(self._pool, piece)
                self._asked.discard(piece)
                self._taken = piece
            try:
                batch = self._pool.take(piece, timeout=self._timeout)
            finally:
                self._taken = None
        if self._pin:
            batch = pin(batch)
        return batch_to_device(batch, self._device, non_blocking=self._pin)

    def want(self, pieces: Sequence[Piece]) -> None:
        """Has these micro-batches loaded ahead, in this order, and no others, as far as workers go.

        Any thread may call this, also while another one waits for a micro-batch, which stays asked for.
        """
        if self._pool is None:
            return
        with self._lock:
            stale = self._asked.difference(pieces)
            self._pool.discard(stale)
            self._asked -= stale
            for piece in pieces:
                if piece != self._taken:
                    self._ask(self._pool, piece)

    def _ask(self, pool: WorkerPool, piece: Piece) -> None:
        if piece not in self._asked:
            self._asked.add(piece)
            pool.request(piece, piece[0], self._indices(piece))

    @property
    def ahead(self) -> int:
        """How many micro-batches are loaded ahead; 0 without workers."""
        return self._ahead

    def is_ready(self, pieces: Sequence[Piece]) -> bool:
        """Says whether micro-batches that were asked for are there (always without workers)."""
        return self._pool is None or all(piece in self._asked and self._pool.ready(piece) for piece in pieces)

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()
