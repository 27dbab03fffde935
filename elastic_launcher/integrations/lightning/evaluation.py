"""Validation and test: the ranks share the batches, and each gets the metrics over all of them."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from elastic_launcher.integrations.lightning.evaluation_logs import EvaluationResults, clear
from elastic_launcher.integrations.lightning.metrics import EvaluationMetrics
from elastic_launcher.torch import Job


class Evaluation:
    """Shares the batches of one of Lightning's evaluation loops.

    A rank takes each W-th batch. When its own are done, the ranks bring their sums together, and with them which
    batches they have done: those of a rank that was lost meanwhile are done by the others, before the sums count.

    Args:
        loop: Lightning's loop.
        job: The job.
    """

    def __init__(self, loop: Any, job: Job) -> None:
        self._loop = loop
        self._job = job
        self._loaders: list[SharedLoader] = []
        self._store = loop._store_dataloader_outputs
        loop._store_dataloader_outputs = self._end_loader
        self._step = loop._evaluation_step
        loop._evaluation_step = self._do_own
        loop._results = self._results = EvaluationResults(loop.trainer.strategy.alike)

    def share(self, loader: Any) -> Any:
        """Returns what Lightning is to take for one of its loaders.

        Raises:
            TypeError: For data whose batches can't be shared.
        """
        shared = SharedLoader(loader, len(self._loaders), self)
        self._loaders.append(shared)
        return shared

    def begin(self) -> None:
        """Forgets the loaders where Lightning asks for them anew."""
        if self._loop._combined_loader is None or not self._loop.trainer.training:
            self._loaders.clear()

    @property
    def shares(self) -> bool:
        """Whether ranks share the batches now: not before this process is admitted."""
        return self._job.rank is not None and not self._loop.trainer.sanity_checking

    def batches(self, loader: int) -> int:
        """Returns how many batches of a loader are evaluated."""
        limit = self._loop.max_batches[loader]
        return min(len(self._loaders[loader]), int(limit) if limit != float("inf") else len(self._loaders[loader]))

    def begin_loader(self) -> EvaluationMetrics:
        """Remembers what metrics are before the first batch of a loader.

        Raises:
            TypeError: If loaders run side by side.
        """
        if not self._loop._is_sequential:
            raise TypeError(
                "the loaders of a validation or test run side by side in a CombinedLoader, whose batches ranks can't "
                "share: give a list of loaders, or pass share_validation=False to ElasticStrategy"
            )
        return EvaluationMetrics(self._loop.trainer.lightning_module)

    def _end_loader(self) -> None:
        """Ends a loader whose batches this rank has done."""
        done = next((one for one in self._loaders if one.running), None)
        if done is not None:
            while (missing := self._bring_together(done)) is not None:
                for number in missing:
                    self._evaluate(done, number)
            done.running = False
            self._loop.trainer.strategy.show_rank()
            for one in self._loaders:  # the first batch of the next one is loaded already
                if one.running:
                    one.metrics = self.begin_loader()
        self._store()

    def _do_own(self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Any) -> None:
        """Does a batch of this rank, which hooks know by its number among those of all ranks."""
        for loader in self._loaders:
            if loader.number == dataloader_idx and loader.done:
                batch_idx = loader.done[batch_idx]
        self._step(batch, batch_idx, dataloader_idx, dataloader_iter)

    def _evaluate(self, loader: SharedLoader, number: int) -> None:
        """Does a batch of a rank that was lost."""
        connector = self._loop.trainer._logger_connector
        first, connector._first_loop_iter = connector._first_loop_iter, False
        self._step(loader.load([number])[0], number, loader.number, None)
        connector._first_loop_iter = first
        loader.done.append(number)

    def _bring_together(self, loader: SharedLoader) -> list[int] | None:
        """Gives what was logged, and metrics, the values of all ranks.

        Largest values and rows come first: a rank that is lost in between is missing in the sums too.

        Returns:
            None; or where a rank was lost, which of its batches this rank does, before the ranks try again.

        Raises:
            RuntimeError: If ranks have other batches, or log other values.
        """
        if not loader.shared:
            return None
        if loader.spare:
            loader.spare = False
            self._forget(loader)
        self._tell(loader)
        job, logged = self._job, self._logged(loader.number)
        parts = loader.metrics.parts()
        sums = {f"metric {name}": value for name, value in parts["sum"].items()}
        most = {f"metric {name}": value for name, value in parts["max"].items()}
        for key, one in logged.items():
            if one.meta.is_mean_reduction:
                sums[f"weight {key}"] = one.cumulated_batch_size
            if one.meta.is_max_reduction or one.meta.is_min_reduction:
                most[key] = one.value if one.meta.is_max_reduction else -one.value
            else:
                sums[key] = one.value
        largest = job.reduce(most, op="max") if most else {}
        rows = {name: job.gather(value) for name, value in parts["cat"].items()}
        done = torch.zeros(self.batches(loader.number) + 2, dtype=torch.float64)
        done[loader.done] = 1
        done[-1], done[-2] = 1, loader.checksum
        found = job.reduce({**sums, "": done}, op="sum")
        counts = found.pop("")
        if counts[-2] != loader.checksum * counts[-1]:
            raise RuntimeError(
                "the batches of a validation or test loader differ between ranks: give its sampler an order that does "
                "not depend on random numbers, or pass share_validation=False to ElasticStrategy"
            )
        missing = (counts[:-2] == 0).nonzero().flatten().tolist()
        if missing:
            return missing[job.rank :: job.world_size]  # type: ignore[misc, no-any-return]
        for key, one in logged.items():
            if one.meta.is_mean_reduction:
                one.cumulated_batch_size = _like(one.cumulated_batch_size, found[f"weight {key}"])
            if key in largest:
                one.value = _like(one.value, largest[key] if one.meta.is_max_reduction else -largest[key])
            else:
                one.value = _like(one.value, found[key])
        loader.metrics.take(
            {
                "sum": {name: torch.as_tensor(found[f"metric {name}"]) for name in parts["sum"]},
                "max": {name: torch.as_tensor(largest[f"metric {name}"]) for name in parts["max"]},
                "cat": rows,  # type: ignore[dict-item]
            }
        )
        return None

    def _tell(self, loader: SharedLoader) -> None:
        """Has all ranks know what any of them has logged and updated: it may depend on the batch."""
        number = self._place(loader.number)
        mine = pickle.dumps((self._results.calls(number), loader.metrics.updated()))
        told = self._job.gather(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        assert isinstance(told, torch.Tensor)
        trainer, told_by_all = self._loop.trainer, io.BytesIO(told.numpy().tobytes())
        while told_by_all.tell() < len(told):
            calls, updated = pickle.load(told_by_all)
            self._results.log_also(calls, trainer.lightning_module, trainer.strategy.reduce)
            loader.metrics.update_also(updated)

    def _place(self, loader: int) -> int | None:
        return loader if len(self._loaders) > 1 else None

    def _logged(self, loader: int) -> dict[str, Any]:
        """Returns the numbers that were logged for the batches of a loader, and count for the whole evaluation."""
        logged = self._results.of_loader(self._place(loader))
        return {key: one for key, one in logged.items() if one.is_tensor and one.meta.on_epoch}

    def _forget(self, loader: SharedLoader) -> None:
        """Leaves nothing of a batch that this rank has done to know what is logged."""
        for one in self._logged(loader.number).values():
            clear(one)
        loader.metrics.forget()


def _like(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


class SharedLoader:
    """A loader of which each rank yields its share of the batches.

    Attributes:
        number: Its place among the loaders of the evaluation.
        running: Whether its batches are being evaluated.
        shared: Whether the ranks share them.
        spare: Whether this rank has no batch, and does one to know what is logged.
        done: The batches that this rank has done.
        checksum: Of what is in the batches.
        metrics: What metrics were before its first batch.
    """

    def __init__(self, loader: Any, number: int, evaluation: Evaluation) -> None:
        _check(loader)
        self.number = number
        self.running = self.shared = self.spare = False
        self.done: list[int] = []
        self.checksum = 0
        self.metrics: EvaluationMetrics
        self._loader = loader
        self._evaluation = evaluation
        self._batches: list[Any] = []

    @property
    def dataset(self) -> Any:
        """The data set."""
        return self._loader.dataset

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.running = True
        self.metrics = self._evaluation.begin_loader()
        in_order = isinstance(self._loader.sampler, SequentialSampler)
        if not (in_order and self._batches):
            self._batches = list(self._loader.batch_sampler)
        total = self._evaluation.batches(self.number)
        self.shared = self._evaluation.shares
        job = self._evaluation._job
        mine = range(job.rank or 0, total, job.world_size or 1) if self.shared else range(total)
        self.spare = not mine and total > 0
        self.done = list(mine)
        self.checksum = 0 if in_order else zlib.crc32(pickle.dumps(self._batches[:total])) & 0xFFFFFF
        yield from self._read([0] if self.spare else self.done)

    def load(self, numbers: list[int]) -> list[Any]:
        """Returns batches by number."""
        return list(self._read(numbers))

    def _read(self, numbers: list[int]) -> Iterator[Any]:
        own, workers = self._loader, self._loader.num_workers
        options: dict[str, Any] = {"multiprocessing_context": own.multiprocessing_context} if workers else {}
        if workers:
            options |= {"prefetch_factor": own.prefetch_factor, "timeout": own.timeout}
        return iter(
            DataLoader(
                own.dataset,
                batch_sampler=[self._batches[number] for number in numbers],
                collate_fn=own.collate_fn,
                num_workers=min(workers, len(numbers)),
                pin_memory=own.pin_memory,
                worker_init_fn=own.worker_init_fn,
                **options,
            )
        )


def _check(loader: Any) -> None:
    advice = "or pass share_validation=False to ElasticStrategy, so that each rank evaluates all batches"
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"the ranks share the batches of a validation or test loader, and can't those of a "
            f"{type(loader).__name__}: give a torch DataLoader of a map-style data set, {advice}"
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TypeError(
            "the ranks share the batches of a validation or test loader, so its data set must be map-style, and it "
            f"needs a batch size; {advice}"
        )
    if isinstance(loader.sampler, RandomSampler):
        raise TypeError(
            f"the ranks share the batches of a validation or test loader, which must be the same on all: leave "
            f"shuffle=True out, {advice}"
        )
