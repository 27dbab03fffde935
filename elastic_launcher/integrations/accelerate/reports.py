"""What rank 0 says: trackers, prints, decorated functions. Any process may become it, and at first none is."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

from elastic_launcher.torch import Job

RANKS = "another process may have that rank after a resize: use accelerator.on_main_process, or ask job.rank"


class Reports:
    """The part of an Accelerator that speaks for all ranks: mixed in before Accelerate's own.

    Attributes:
        job: The job.
        trackers: Those that have begun in this process.
    """

    job: Job
    log_with: Any
    trackers: list[Any]
    _begin_trackers: Callable[[], None] | None = None

    @property
    def is_main_process(self) -> bool:
        """Whether this process is rank 0 now; before the first batch none is (a warning)."""
        return self.job.is_main

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process is rank 0 now: only that one prints and writes."""
        return self.job.is_main

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function that only rank 0 calls, whoever that is then; elsewhere it returns None."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.job.rank == 0 else None

        return called

    on_local_main_process = on_main_process
    on_last_process = on_main_process  # to Accelerate there is one process

    def on_process(self, *_: Any, **__: Any) -> Any:
        """Is refused.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"accelerator.on_process: {RANKS}")

    def on_local_process(self, *_: Any, **__: Any) -> Any:
        """Is refused.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"accelerator.on_local_process: {RANKS}")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints on rank 0."""
        if self.job.rank == 0:
            print(*args, **kwargs)

    # -- trackers

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Has trackers begin on rank 0, with its first `log`; where another process becomes rank 0, its own begin.

        Call it on all ranks: before the first batch none is rank 0.
        """
        self._begin_trackers = functools.partial(super().init_trackers, *args, **kwargs)  # type: ignore[misc]
        self._begin_if_main()

    def _begin_if_main(self) -> None:
        begin = self._begin_trackers
        if self.job.rank == 0 and begin is not None and not self.trackers:
            begin()
            atexit.register(self.end_training)  # of a process that leaves the job, too

    def log(self, values: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Logs values to the trackers, on rank 0, and numbers to the job's events, report and metrics.

        Raises:
            RuntimeError: If there are trackers that were not begun.
        """
        self.job.log({name: float(value) for name, value in values.items() if _is_number(value)})
        if self.job.rank != 0:
            return
        if self.log_with and self._begin_trackers is None:
            raise RuntimeError(
                "accelerator.log before accelerator.init_trackers: call that before the loop, on all ranks, without "
                "`if accelerator.is_main_process:` around it: no process is rank 0 before its first batch"
            )
        self._begin_if_main()
        super().log(values, *args, **kwargs)  # type: ignore[misc]

    def get_tracker(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a tracker on rank 0, and one that does nothing elsewhere.

        Raises:
            RuntimeError: Before the first batch: no process is rank 0 then.
        """
        if self.job.rank is None and self.job.micro is None:
            raise RuntimeError(
                "accelerator.get_tracker before the first batch, where no process is rank 0 yet, and another one may "
                "become it: call it in the training loop or after it, each time that it is needed"
            )
        self._begin_if_main()
        return super().get_tracker(*args, **kwargs)  # type: ignore[misc]

    def end_training(self) -> None:
        """Ends the trackers of this process, as its end does."""
        atexit.unregister(self.end_training)
        for tracker in self.trackers:
            tracker.finish()


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, Real) and not isinstance(value, bool)
