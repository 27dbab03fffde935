"""Evaluation and prediction: the ranks share the batches, and each gets what came of all of them."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from accelerate.state import GradientState
from torch.nn.functional import pad
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from elastic_launcher.torch import Job
from elastic_launcher.torch.data.stock_loader import FORWARD

MOST_DIMENSIONS = 8


class Numbers(Dataset[int]):
    """The numbers of batches, as samples of a data set that ranks share."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


class Evaluated(dict[str, Any]):
    """A batch whose prediction step is done; it holds no more than the Trainer's loop asks for.

    Attributes:
        result: Loss, outputs and labels.
    """

    result: tuple[Any, Any, Any]


class SharedBatches:
    """The batches of a loader, which the Trainer's evaluation loop takes one after the other when all are evaluated.

    Each batch is evaluated on one rank, as a whole, so that its loss is that of one process. If a rank is lost
    meanwhile, the others evaluate its batches.

    Args:
        trainer: The Trainer.
        loader: Its loader.
        loss_only: Whether it wants no outputs.
        ignore_keys: Of outputs.

    Attributes:
        dataset: That of the loader.
        end_of_dataloader: What Accelerate's loaders say of themselves; the next two as well.
        remainder: How many samples the last batch has, 0 where it is whole, or -1 for all that come.
        batch_sampler: None: no process has a part of it.

    Raises:
        TypeError: If the loader's batches can't be had by number, or are other ones on each rank.
    """

    def __init__(self, trainer: Any, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None) -> None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            what = type(loader.dataset if isinstance(loader, DataLoader) else loader).__name__
            raise TypeError(f"the data to evaluate are a {what}, {FORWARD}; give a map-style data set")
        if loader.batch_sampler is None:
            raise TypeError("the loader of the evaluation has batch_size=None; give it a number")
        if isinstance(loader.sampler, RandomSampler):
            raise TypeError("the loader of the evaluation shuffles, differently on each rank; leave shuffle=True out")
        self.dataset = cast(Any, loader.dataset)
        self.end_of_dataloader = False
        size = getattr(loader.batch_sampler, "batch_size", None)
        self.remainder = len(self.dataset) % size if size and not loader.drop_last else -1
        self.batch_sampler = None
        self._trainer = trainer
        self._job: Job = trainer.job
        self._collate = loader.collate_fn
        self._loss_only = trainer.args.prediction_loss_only if loss_only is None else loss_only
        self._ignore_keys = ignore_keys
        self._preprocess = trainer.preprocess_logits_for_metrics
        self._main_input = getattr(trainer.model, "main_input_name", "input_ids")
        self._batches = [list(indices) for indices in loader.batch_sampler]
        self._drawn = not isinstance(loader.sampler, SequentialSampler)
        self._form: TreeSpec | None = None
        self._done: dict[int, list[torch.Tensor | None]] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Evaluated]:
        results = self._all()
        state = GradientState()
        state._add_dataloader(self)
        try:
            for number, leaves in enumerate(results):
                assert self._form is not None
                loss, outputs, labels, inputs, collected = tree_unflatten(leaves, self._form)
                nothing = torch.empty(len(self._batches[number]), 0)
                batch = Evaluated({self._main_input: nothing} if inputs is None else inputs)
                batch.result = loss, outputs, labels
                if collected:
                    self._trainer._token_metrics.collect_evaluation(collected)
                self.end_of_dataloader = number == len(self) - 1
                yield batch
        finally:
            state._remove_dataloader(self)

    def _all(self) -> list[list[torch.Tensor | None]]:
        """Returns what came of all batches."""
        if self._job.rank is None or not self._batches:
            return [self._evaluate(number) for number in range(len(self))]
        if self._drawn:
            self._check_alike()
        loader = self._job.dataloader(Numbers(len(self)))
        shapes = self._job.gather(self._shapes, loader)
        assert isinstance(shapes, torch.Tensor)
        largest = [[int(size) for size in sizes if size >= 0] for sizes in shapes.amax(0)]
        rows = self._job.gather(lambda numbers: self._rows(numbers, largest), loader)
        assert isinstance(rows, dict)
        return [
            [
                _cut(rows[str(place)][number], shapes[number, place]) if str(place) in rows else None
                for place in range(len(largest))
            ]
            for number in range(len(self))
        ]

    def _check_alike(self) -> None:
        """Refuses batches that a sampler has drawn on each rank for itself.

        Raises:
            RuntimeError: If they differ between ranks.
        """
        checksum = zlib.crc32(pickle.dumps(self._batches))
        found = self._job.reduce({"most": checksum, "least": -checksum}, op="max")
        if found["most"] != -found["least"]:
            raise RuntimeError(
                "the batches of an evaluation differ between ranks: give the loader's sampler an order that does not "
                "depend on random numbers"
            )

    def _evaluate(self, number: int) -> list[torch.Tensor | None]:
        """Returns the loss, outputs, labels and inputs of a batch, as a list of tensors."""
        if number not in self._done:
            trainer = self._trainer
            batch = self._collate([self.dataset[index] for index in self._batches[number]])
            predict = partial(
                trainer.prediction_step, trainer.model, batch, self._loss_only, ignore_keys=self._ignore_keys
            )
            metrics = trainer._token_metrics
            (loss, outputs, labels), collected = metrics.of_evaluation(predict) if metrics else (predict(), {})
            if outputs is not None and self._preprocess is not None:
                outputs = self._preprocess(outputs, labels)
            inputs = self._inputs(batch) if "inputs" in trainer.args.include_for_metrics else None
            leaves, self._form = tree_flatten((loss, outputs, labels, inputs, collected))
            self._done[number] = [_on_cpu(leaf) for leaf in leaves]
        return self._done[number]

    def _inputs(self, batch: Any) -> dict[str, torch.Tensor]:
        """Returns what metrics get of a batch: all tensors where they are computed batch by batch."""
        if not self._trainer.args.batch_eval_metrics:
            return {self._main_input: batch[self._main_input]}
        return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}

    def _shapes(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the shapes of what came of batches; of each -1 after the last dimension."""
        return torch.tensor(
            [
                [
                    [*leaf.shape, *[-1] * (MOST_DIMENSIONS - leaf.ndim)] if leaf is not None else [-1] * MOST_DIMENSIONS
                    for leaf in self._evaluate(number)
                ]
                for number in numbers.tolist()
            ]
        )

    def _rows(self, numbers: torch.Tensor, largest: list[list[int]]) -> dict[str, torch.Tensor]:
        """Returns what came of batches, each tensor filled up to the largest of its kind."""
        found = [self._evaluate(number) for number in numbers.tolist()]
        rows = {}
        for place, shape in enumerate(largest):
            leaves = [one[place] for one in found]
            whole = [_fill(leaf, shape) for leaf in leaves if leaf is not None]
            if whole:
                rows[str(place)] = torch.stack(whole)
        return rows


def _on_cpu(leaf: Any) -> torch.Tensor | None:
    if leaf is None or isinstance(leaf, torch.Tensor):
        return None if leaf is None else leaf.cpu()
    raise TypeError(
        f"the model's outputs hold a {type(leaf).__name__}, which ranks can't exchange: leave it out with ignore_keys, "
        "or take the tensors that are needed in preprocess_logits_for_metrics"
    )


def _fill(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    missing = [size - own for size, own in zip(shape, tensor.shape, strict=True)]
    if not any(missing):
        return tensor
    return pad(tensor, [side for size in reversed(missing) for side in (0, size)])


def _cut(tensor: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    return tensor[tuple(slice(int(size)) for size in shape if size >= 0)]
