"""The training script's data loader: any map-style data set, in the order of (seed, epoch, step), in micro-batches of
this rank's share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from elastic_launcher.adaptive.learning_rate import Formula, Rule
from elastic_launcher.batch import whole_number
from elastic_launcher.batch_schedule import DataPass
from elastic_launcher.torch.data.fetch import batch_to_device, pin
from elastic_launcher.torch.data.lane_workers import LaneWorkers
from elastic_launcher.torch.data.lanes import Lanes
from elastic_launcher.torch.data.micro_batches import Piece
from elastic_launcher.torch.data.source import Source, Weights
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.data.worker_pool import WorkerPool

BLOCK = 4096  # positions of an epoch's order that are worked out at once
PREFETCH = 2  # micro-batches that each worker loads ahead, where the script says nothing; as in torch

LOADING = ("drop_last", "num_workers", "collate_fn", "pin_memory", "prefetch_factor", "worker_init_fn", "timeout")
OPTIONS = (*LOADING, "weights", "num_samples", "replacement")
ORDERS = (
    "the job decides which samples come when; use shuffle= and seed=, or weights=, num_samples= and replacement=, "
    "which draw as torch's WeightedRandomSampler does"
)
REFUSED = {
    "sampler": ORDERS,
    "batch_sampler": ORDERS,
    "batch_size": "micro-batches follow from global_batch_size and max_batch_per_gpu of init()",
    "generator": "random numbers derive from seed=",
    "multiprocessing_context": "workers are forked when the loader is made; leave it out",
}


ALWAYS_PERSISTENT = "workers always live on across epochs and resizes; leave it out, or say True"


def check_options(options: dict[str, Any]) -> None:
    """Refuses what `Job.dataloader` does not take, and takes ``persistent_workers`` out.

    Raises:
        TypeError: That says why, or what it takes.
    """
    if options.pop("persistent_workers", True) is False:
        raise TypeError(f"job.dataloader takes no persistent_workers=False: {ALWAYS_PERSISTENT}")
    for name in options:
        if name in REFUSED:
            raise TypeError(f"job.dataloader takes no {name}=: {REFUSED[name]}")
        if name not in OPTIONS:
            raise TypeError(f"job.dataloader takes no {name}=; it takes shuffle, seed, {', '.join(OPTIONS)}")


class ElasticLoader(TrainingData):
    """Gives this rank's micro-batches of each optimizer step; made by `Job.dataloader`, which says more.

    Args:
        first_batch: The global batch with which the training begins, by which lanes are arranged.
        data_pass: Returns the job's present pass over the data.
        device: Where batches go.
        train: Runs the training loop over a loader.
        autoscale: Lets the batch adapt, within bounds.
        epoch: The epoch in which it is made; None before the first one.
        seed: What the order derives from.
        num_workers: Processes that load ahead; 0 loads in the training thread.
        prefetch_factor: Micro-batches that each worker loads ahead; 2 by default, as in torch.
        timeout: Seconds after which a batch that does not come is an error; 0 waits.
        weights: How likely each sample is drawn; None for each sample once.
        num_samples: Draws in an epoch.
        replacement: Whether an epoch may draw a sample again.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Lanes,
        *,
        first_batch: int,
        data_pass: Callable[[TrainingData], DataPass],
        device: torch.device,
        train: Callable[[ElasticLoader], Iterator[Any]],
        autoscale: Callable[[TrainingData, int | None, Sequence[int] | None, bool, str | Rule | Formula | None], None],
        epoch: int | None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0.0,
        weights: Any = None,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        num_workers = whole_number("num_workers", num_workers, 0)
        each = PREFETCH if prefetch_factor is None else whole_number("prefetch_factor", prefetch_factor)
        if timeout and timeout < 0:
            raise ValueError(f"timeout is {timeout}; it must be 0 seconds, which waits, or more")
        drawn = Weights(weights, num_samples, replacement)
        source = Source(dataset, seed=seed, shuffle=shuffle, weights=drawn, batch=first_batch, collate_fn=collate_fn)
        super().__init__(source.name, source.size, epoch=epoch, shuffle=shuffle, seed=seed, drop_last=drop_last)
        data_pass(self).counts()  # refuses a data set without a step
        self.dataset = dataset
        self.ahead = num_workers * each
        self._data_pass = data_pass
        self._device = device
        self._train = train
        self._autoscale = autoscale
        self._pin = pin_memory and device.type == "cuda"
        self._timeout = timeout or None
        self.source = source
        self._pool = source.workers(num_workers, worker_init_fn)
        self._asked: set[Piece] = set()
        self._taken: Piece | None = None  # by the training thread at the moment
        self._lock = threading.RLock()
        # not a method: a loader that refers to itself would keep its workers until Python looks for such cycles
        self._order = lru_cache(maxsize=16)(partial(_order_of_block, source, source.size, seed))

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self._data_pass(self).steps

    def samples(self, step_in_epoch: int) -> int:
        """Returns how many samples a step of the present epoch takes, over all ranks.

        Raises:
            ValueError: If the epoch has no such step, counted from 0.
        """
        return self._data_pass(self).samples(step_in_epoch).count

    def autoscale_batch_size(
        self,
        max_batch_size: int | None = None,
        local_bsz_bounds: tuple[int, int] | None = None,
        gradient_accumulation: bool = True,
        *,
        learning_rate_rule: str | Rule | Formula | None = None,
    ) -> None:
        """Lets the job choose its global batch while it trains on this loader; call it before the training loop.

        The training begins with the global batch of `init`. The batch changes between two steps, on all ranks at once,
        and each change is recorded; learning rates follow it.

        Args:
            max_batch_size: Most samples of an optimizer step, over all ranks. Without it the script only allows the
                batch to adapt: it does where ``--autoscale-batch-size`` of the launcher asks for it.
            local_bsz_bounds: Fewest and most samples of a micro-batch that a decision chooses; 1 and max_batch_per_gpu
                by default. After a change of the world size the batch may be divided otherwise until the next decision.
            gradient_accumulation: Whether a decision may give a rank several micro-batches in a step.
            learning_rate_rule: ``adascale``, ``adam``, ``linear``, ``sqrt``, ``legw:EPOCHS``, or a function of the
                scale (the global batch over the first one), the gain of a parameter group and the statistical epochs
                that returns the factor. By default ``adam`` for Adam and AdamW, else ``adascale``.

        Raises:
            ValueError: If the bounds contradict each other, the first batch or the data set.
            RuntimeError: If training has begun, or a batch adapts already.
        """
        self._autoscale(self, max_batch_size, local_bsz_bounds, gradient_accumulation, learning_rate_rule)

    def __len__(self) -> int:
        raise TypeError(
            "a loader of job.dataloader has no length in batches: how many micro-batches this rank gets depends on the "
            "number of ranks. loader.steps_per_epoch is the number of optimizer steps, len(dataset) that of samples"
        )

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        """Runs the training loop over this loader from the job's position."""
        return self._train(self)

    def _indices(self, piece: Piece) -> list[int]:
        epoch, start, count = piece
        first, last = start // BLOCK, (start + count - 1) // BLOCK
        order = np.concatenate([self._order(epoch, block) for block in range(first, last + 1)])
        start -= first * BLOCK
        return cast("list[int]", order[start : start + count].tolist())

    def take(self, piece: Piece) -> Any:
        """Returns a micro-batch, on the job's device."""
        if self._pool is None:
            batch = self.source.fetcher.fetch(piece[0], self._indices(piece))
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

    def want(self, pieces: Sequence[Piece], *, urgent: bool = False) -> None:
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
                    self._ask(self._pool, piece, urgent=urgent and piece == pieces[0])

    def _ask(self, pool: WorkerPool | LaneWorkers, piece: Piece, *, urgent: bool = False) -> None:
        if piece not in self._asked:
            self._asked.add(piece)
            pool.request(piece, piece[0], self._indices(piece), urgent=urgent)

    def is_ready(self, pieces: Sequence[Piece]) -> bool:
        """Says whether micro-batches that were asked for are there (always without workers)."""
        return self._pool is None or all(piece in self._asked and self._pool.ready(piece) for piece in pieces)

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()


def _order_of_block(source: Source, size: int, seed: int, epoch: int, block: int) -> np.ndarray:
    start, stop = block * BLOCK, min((block + 1) * BLOCK, size)
    return source.order(seed, epoch, start, stop)
