"""The optimizer steps of a training, in the place of a loader's batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from elastic_launcher.torch import Job
from elastic_launcher.torch.data.loader import ElasticLoader


class Steps:
    """What the Trainer takes for its loader: it yields when the gradient of a step is there.

    A batch of it has no tokens: the Trainer adds up those of batches, and the job brings the real ones together.

    The last step of an epoch ends when the Trainer asks for the next one: a checkpoint of the job then holds what the
    Trainer does after an epoch, its evaluation for instance.

    Attributes:
        loader: The job's loader.
        losses: Those of the steps.
        stopped: Whether the job has ended before the Trainer has.
    """

    def __init__(self, job: Job, loader: ElasticLoader, micro_batch: Callable[[Any], None], main_input: str) -> None:
        self.loader = loader
        self.losses = Losses()
        self.stopped = False
        self._job = job
        self._micro_batch = micro_batch
        self._token = {main_input: torch.empty(0, 0), "attention_mask": torch.empty(0, 0)}
        self._epochs: Iterator[int] = iter(())
        self._total = 0
        self._in_loop = False
        self._finished = False
        self._counts = torch.zeros(2, dtype=torch.float64, device=job.device)
        self._counted = torch.zeros(2, dtype=torch.float64)
        job.track({"transformers.counts": self._counts}, op="sum")

    @property
    def dataset(self) -> Any:
        """The data set."""
        return self.loader.dataset

    def begin(self, max_steps: int) -> None:
        """Begins a training of so many steps."""
        self._total = math.ceil(max_steps / len(self))
        self._epochs = self._job.epochs(self._total)

    def __len__(self) -> int:
        return self.loader.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Yields the steps that are left of the present epoch, or of the next one that is left."""
        self._end_epoch()
        for _ in self._epochs:
            while self._step():
                yield self._token
                if self._job.step_in_epoch == len(self):
                    return
        self.stopped = True

    def _step(self) -> bool:
        self._in_loop = self._job.run_step(self.loader, self._micro_batch)
        return self._in_loop

    def _end_epoch(self) -> None:
        """Ends an epoch whose last step is done."""
        if self._in_loop and self._job.step_in_epoch == len(self):
            self._step()

    def finish(self) -> None:
        """Ends the training on all ranks, wherever it is."""
        self._end_epoch()
        if not self._finished and not self.stopped and (self._in_loop or self._job.epoch + 1 < self._total):
            self._job.stop("ended by the Trainer")
            if self._in_loop:
                self._step()
        self._finished = True
        for _ in self._epochs:
            pass

    def count(self, flos: float, tokens: int) -> None:
        """Counts a micro-batch."""
        self._counts += torch.tensor([flos, tokens], dtype=torch.float64, device=self._counts.device)

    def counted(self) -> tuple[float, float]:
        """Returns what all ranks have counted since the last call."""
        now = self._counts.cpu()
        found = now - self._counted
        self._counted = now.clone()
        return float(found[0]), float(found[1])

    def position(self) -> float:
        """Returns how many epochs are done."""
        return self._job.epoch + self._job.step_in_epoch / len(self)

    def state_dict(self) -> dict[str, Any]:
        """Returns what is remembered between steps."""
        return {"counted": self._counted.tolist(), **self.losses.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned."""
        self._counted = torch.tensor(state["counted"], dtype=torch.float64)
        self.losses.load_state_dict(state)


class Losses:
    """The losses of steps, as the Trainer adds them up to log their means.

    Attributes:
        total: Of all steps.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._sum = 0.0  # since the last mean
        self._steps = 0

    def add(self, loss: float, filters: bool) -> None:
        """Adds the loss of a step; if ``filters``, the mean of those before it if it is not finite."""
        if filters and not math.isfinite(loss):
            loss = self._sum / (1 + self._steps)
        self._sum += loss
        self.total += loss
        self._steps += 1

    def mean(self) -> float:
        """Returns the mean since the last call."""
        found = self._sum / max(self._steps, 1)
        self._sum, self._steps = 0.0, 0
        return found

    def state_dict(self) -> dict[str, float]:
        """Returns the sums."""
        return {"total": self.total, "sum": self._sum, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes sums that `state_dict` has returned."""
        self.total, self._sum, self._steps = state["total"], state["sum"], state["steps"]
