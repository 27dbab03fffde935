"""A prepared loader: it trains on this rank's part of each global batch, and evaluates on all samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from elastic_launcher.integrations.accelerate.checks import refuse_training
from elastic_launcher.torch.data.loader import ElasticLoader
from elastic_launcher.torch.data.stock_loader import read_loader


class PreparedLoader:
    """What `ElasticAccelerator.prepare` makes of a DataLoader.

    Where a prepared model is in train mode, and gradients are on, a loop over it is a training loop of the job, and
    yields this rank's micro-batches. Otherwise it yields the batches of the DataLoader, all of them on each rank.

    Args:
        accelerator: The Accelerator.
        loader: The script's DataLoader.
        placed: The same as Accelerate has prepared it: it puts batches on the device.

    Attributes:
        dataset: The data set.
        batch_size: That of the DataLoader.
        total_batch_size: The same: that of all ranks.
    """

    def __init__(self, accelerator: Any, loader: DataLoader[Any], placed: Any) -> None:
        self.dataset: Any = loader.dataset
        self.batch_size = self.total_batch_size = loader.batch_size
        self._accelerator = accelerator
        self._loader = loader
        self._placed = placed
        self._trained = self._make_trained()

    def _make_trained(self) -> ElasticLoader | None:
        """Returns the job's loader of the same data, if it can train; it has workers from the beginning."""
        job = self._accelerator.job
        if self.batch_size != job.global_batch_size:
            return None
        try:
            data = read_loader(self._loader)
        except TypeError:
            return None  # it may evaluate
        seed = self._accelerator.dataloader_config.data_seed
        made: ElasticLoader = job.dataloader(data.dataset, shuffle=data.shuffle, seed=seed, **data.options)
        return made

    def __len__(self) -> int:
        return len(self._placed)

    def __getattr__(self, name: str) -> Any:
        """Has nothing else of a DataLoader: `accelerate.skip_first_batches` would take another loader of these parts.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"a DataLoader that ElasticAccelerator has prepared has no {name!r}: the job decides which samples a rank "
            "gets; ask the DataLoader that was given to accelerator.prepare. accelerate.skip_first_batches takes "
            "neither of them: the job resumes where it was; for a checkpoint of your own, call "
            "job.start_at(epoch, step) before the training loop"
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of an evaluation's order; that of a training is the job's."""
        self._placed.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        accelerator = self._accelerator
        if not accelerator.trains:
            evaluation = object()
            try:
                for batch in self._placed:
                    accelerator.evaluations.add(evaluation)
                    yield batch
            finally:
                accelerator.evaluations.discard(evaluation)
            return
        if self._trained is None:
            refuse_training(self._loader, accelerator.job.global_batch_size)
        accelerator.begin_training_loop()
        for batch in self._trained:
            accelerator.show_rank()
            accelerator.evaluations.clear()  # an iterator that is left open evaluates nothing now
            yield batch
        accelerator.show_rank()
