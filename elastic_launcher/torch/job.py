"""The job as a training script sees it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import Dataset

from elastic_launcher.control.messages import Log
from elastic_launcher.torch.arguments import check_backward, logged_numbers
from elastic_launcher.torch.data.lanes import Lanes
from elastic_launcher.torch.data.loader import ElasticLoader, check_options
from elastic_launcher.torch.first_on_node import first_on_node
from elastic_launcher.torch.gather import Rows, gather
from elastic_launcher.torch.job_status import JobStatus
from elastic_launcher.torch.membership.member import Member
from elastic_launcher.torch.on_main import OnMain
from elastic_launcher.torch.reconfigure.start import start_at
from elastic_launcher.torch.script_end import watch_script_end
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.tracked import Tensors
from elastic_launcher.torch.step.adaptive_values import adaptive_values
from elastic_launcher.torch.step.autoscale import turn_on
from elastic_launcher.torch.step.engine import StepEngine
from elastic_launcher.torch.step.loop import StepLoop
from elastic_launcher.torch.step.memory import take_known_limit
from elastic_launcher.torch.step.prepare import prepare
from elastic_launcher.torch.step.reductions import Number, evaluate, reduce_values


class Job(JobStatus):
    """An elastic training job; made by `init`, used as in the README.

    The job's progress is read when it is used: rank and world size change at a resize.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._engine = StepEngine(session)
        self._steps = StepLoop(session, self._engine)

    def _join(self, member: Member) -> None:
        """Joins the coordinator's job, and takes over where that stands."""
        session = self._session
        standing = member.join(self._engine.hooks())
        watch_script_end(session, self._steps)
        session.move_to(session.position.at(standing.phase, standing.epoch))
        session.sums.known = dict(standing.sums)
        session.shares.least_world_size = standing.least_world_size
        take_known_limit(session)

    def prepare(self, *things: Any) -> Any:
        """Prepares models, optimizers, schedulers and gradient scalers.

        Models are moved to the job's device; optimizers, schedulers and scalers act once per global batch from now on,
        in any micro-batch.

        Returns:
            The same objects in the same order (a single one by itself).

        Raises:
            TypeError: For a model wrapped in DDP or FSDP, sparse embeddings, SyncBatchNorm, LBFGS, or something else
                than the above.
        """
        return prepare(self._session, things)

    def dataloader(
        self, dataset: Dataset[Any] | Lanes, *, shuffle: bool = False, seed: int | None = None, **options: Any
    ) -> ElasticLoader:
        """Makes a loader of a map-style data set, or of lanes.

        Args:
            dataset: Anything with ``__len__`` and ``__getitem__``; or what `lanes` returns.
            shuffle: Whether each epoch has an order of its own.
            seed: What the order derives from; the job's seed by default.
            **options: Of torch's DataLoader: ``drop_last``, ``num_workers``, ``collate_fn``, ``pin_memory``,
                ``prefetch_factor``, ``worker_init_fn``, ``timeout``; and ``persistent_workers=True``, which they are.
                Of its WeightedRandomSampler: ``weights``, ``num_samples``, ``replacement``.

        Raises:
            TypeError: For an option that the job decides itself, or an iterable data set.
            ValueError: For an empty data set, or numbers that don't go together.
        """
        check_options(options)
        session = self._session
        return ElasticLoader(
            dataset,
            first_batch=session.schedule.batch_size(0),
            data_pass=lambda data: session.data_pass(data, session.position),
            device=session.device,
            train=self._steps.train,
            autoscale=partial(turn_on, session),
            epoch=session.course.epoch_of_what_is_made,
            shuffle=shuffle,
            seed=session.seed if seed is None else seed,
            **options,
        )

    def start_at(self, epoch: int, step: int = 0) -> None:
        """Has a new job start at a later position: with what the script has loaded from a file of its own.

        Every rank calls it before the first `epochs` or training loop. It is ignored in a job that trains already, and
        with a warning where the job resumes from its own checkpoint. An epoch is one pass over the loader.

        Args:
            epoch: The epoch, from 0.
            step: How many of its optimizer steps are done.

        Raises:
            ValueError: If a number is below 0.
            RuntimeError: After the first `epochs` or training loop has begun.
        """
        start_at(self._session, epoch, step)

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the epochs that are left, beginning with the present one; each is a pass over the data.

        Args:
            total: Epochs of the whole training. Where the batch adapts, `statistical_epoch` counts them: there are
                more passes with a larger batch, and the last one ends with the step that completes them.
        """
        if isinstance(total, bool) or not isinstance(total, int) or total < 0:
            raise ValueError(f"epochs is {total!r}; it must be a whole number, 0 or more")
        return self._steps.epochs(total)

    def run_step(self, loader: ElasticLoader, body: Callable[[Any], object]) -> bool:
        """Runs the micro-batches of one optimizer step, up to its gradient: a loop over the loader, step by step.

        Rehearsal, admission and steps that are done again stay inside the call. Optimizers act after it.

        Args:
            loader: A loader of `dataloader`.
            body: Called as ``body(batch)`` for each micro-batch; it does the forward pass and calls `backward`. Memory
                that it runs out of is handled as in `micro_batch`.

        Returns:
            Whether the gradient is there; False where this loop over the loader, or the whole job, is over.
        """
        return self._steps.run_step(_made_here(loader, "job.run_step"), body)

    def backward(
        self,
        loss: torch.Tensor | None,
        *,
        weight: float | torch.Tensor | None = None,
        optimizer: Optimizer | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Adds this micro-batch's gradient to the global batch and, when that is complete, reduces over all ranks.

        Args:
            loss: A scalar: the mean over the micro-batch's samples (or tokens: see ``weight``), or what
                `GradScaler.scale` made of it. None leaves the micro-batch out, together with ``weight=0``: also after
                an exception in its forward pass, or in its `backward`.
            weight: What the mean was taken over, if not samples: its number of tokens. 0 leaves no trace.
            optimizer: The prepared optimizer whose parameters get gradients; all by default.
            retain_graph: Whether another backward pass may follow through the same graph, as in torch.

        Raises:
            ValueError: If the loss is no scalar or has no gradient, or the weight is negative.
            RuntimeError: Outside the training loop, or when ranks have come apart.
        """
        number, only, owner = check_backward(self._session, loss, weight, optimizer)
        self._engine.backward(loss, number, only=only, owner=owner, retain_graph=retain_graph)

    def micro_batch(self) -> AbstractContextManager[None]:
        """Returns a context for a micro-batch's forward pass, loss and `backward`, in which an out-of-memory error is
        taken: the step is done again with smaller micro-batches, and nothing after the block takes effect until then.

        An out-of-memory error in `backward` alone is taken without it. Elsewhere it ends the process, and one with
        smaller micro-batches takes its place.
        """
        return self._engine.redone_smaller()

    def evaluate(self, fn: Callable[..., Mapping[str, Number]], loader: ElasticLoader) -> dict[str, Any]:
        """Sums ``fn`` over a data set, which all ranks share; each sample is counted once.

        Args:
            fn: Called as ``fn(*batch)`` without gradients; returns a dict of sums over the batch (numbers or tensors).
            loader: A loader of `dataloader`.

        Returns:
            The sums over all samples (float64, bit-equal on all ranks) and ``count``, the number of samples.
        """
        own = _made_here(loader, "job.evaluate")
        return self._steps.sum(lambda: evaluate(self._session, self._engine.recovery, fn, own))

    def reduce(self, values: Any, *, op: str = "mean", weight: float = 1.0) -> Any:
        """Reduces a number, a tensor or a dict of them over all ranks; every rank must call it.

        Args:
            values: This rank's values.
            op: ``sum``, ``mean``, ``max`` or ``min``.
            weight: What this rank counts in a mean.

        Raises:
            TypeError: If a value is neither a number nor a tensor.
            ValueError: For another op, or a weight below 0.
            RuntimeError: If ranks give other names or shapes.
        """
        return self._steps.sum(lambda: reduce_values(self._session, self._engine.recovery, values, op, weight))

    def gather(self, rows: Rows | Callable[..., Rows], loader: ElasticLoader | None = None) -> Rows:
        """Brings rows together from all ranks, in the order of the samples; every rank must call it.

        In a training loop, ``rows`` are this rank's of the step, those of its micro-batches in turn (`samples` of
        each). With a loader, they are what a function gives for the samples of a data set, each once.

        Args:
            rows: A tensor with a row for each sample, or a dict of such; or a function, called as ``rows(*batch)``
                without gradients, that returns one for a batch.
            loader: A loader of `dataloader`, for a function.

        Returns:
            The rows of all ranks, the same on each, on the CPU.

        Raises:
            TypeError: For something else.
            ValueError: If there is not one row for each sample.
            RuntimeError: If ranks give other names, types or shapes.
        """
        over = None if loader is None else _made_here(loader, "job.gather")
        return self._steps.sum(lambda: gather(self._session, self._engine.recovery, rows, over))

    def log(self, values: Mapping[str, float]) -> None:
        """Records values under their names with the current step; calls from several ranks count once (the lowest
        rank's).

        Raises:
            TypeError: If they are no mapping, or a value is no number.
        """
        plain = logged_numbers(values)
        if self.rank is not None and not (self._session.micro is not None and self._session.micro.rehearsal):
            self._session.report(Log(self.step, self.rank, plain))

    def to_tensorboard(self, writer: Any, global_step: int | None = None, tag_prefix: str = "") -> None:
        """Writes the values of an adaptive batch as scalars: ``batch``, ``lr_factor``, ``noise_scale``,
        ``efficiency``, ``gain`` and ``statistical_epoch``. Nothing with a fixed batch, nor on other ranks than rank 0.

        Args:
            writer: A ``SummaryWriter``, or what `on_main` has made of one.
            global_step: The optimizer steps done by default.
            tag_prefix: What the names of the scalars begin with, such as ``adaptive/``.
        """
        values = adaptive_values(self._session)
        if not values or self.rank != 0:
            return
        step = self.step if global_step is None else global_step
        for name, value in {**values, "gain": self.gain, "statistical_epoch": self.statistical_epoch}.items():
            writer.add_scalar(f"{tag_prefix}{name}", value, step)

    def save(self) -> None:
        """Asks for a checkpoint of the whole job after the next step that is completed; from any or all ranks.

        Without our launcher there is nothing that could go on from it: nothing is saved then.
        """
        micro = self._session.micro
        if self._session.checkpoints is not None and (micro is None or not micro.rehearsal):
            self._session.checkpoints.ask()

    def stop(self, reason: str = "stopped by the script") -> None:
        """Ends loader and epochs on all ranks at one step; one rank's call is enough."""
        micro = self._session.micro
        if micro is None or not micro.rehearsal:
            self._session.stop_reason = reason

    def register(self, name: str, obj: Any) -> None:
        """Lets anything with ``state_dict`` and ``load_state_dict`` travel to joiners.

        Raises:
            TypeError: If it has no such methods, or its state holds what can't travel (the message names the path).
            ValueError: If the name is taken.
        """
        self._session.state.register(name, obj)

    def track(self, tensors: Tensors | Callable[[], Tensors], op: str = "mean") -> None:
        """Keeps tensors equal on all ranks that forward passes change, and that are no buffers: metrics, statistics.

        What the ranks' micro-batches of a step have added is brought together in its last `backward`, with the
        gradient. An attempt at a step that is dropped leaves nothing. Joiners and checkpoints get the values.

        Args:
            tensors: By name or in order, or a function that returns them, where the script puts others in their place.
            op: ``mean``: the mean change by samples, as for batch norm's statistics. ``sum``: all that was added.
                ``max``: the largest value.

        Raises:
            TypeError: If one is no tensor, or can't be reduced so.
            ValueError: For another op, or a tensor that is trained.
            RuntimeError: In a training loop.
        """
        if self._session.data is not None:
            raise RuntimeError("job.track was called in a training loop; call it before that")
        self._session.buffers.tracked.add(tensors, op)
        self._session.state.tracked = self._session.buffers.tracked

    def on_main(self, make: Callable[[], Any]) -> Any:
        """Returns a proxy for an object of rank 0: ``job.on_main(lambda: SummaryWriter("runs"))``.

        Its methods are called on whoever is rank 0 at the time, and do nothing, and return None, elsewhere. It is made
        at its first use, by each process that becomes rank 0, and closed (``close()`` or ``finish()``) where another
        one has become it, or at the process's end.

        Args:
            make: Makes the object.
        """
        return OnMain(lambda: self._is_main(4), make)

    def _write_on_main(self, what: str, write: Callable[[], Any], stacklevel: int) -> Any:
        """Has rank 0 write something, or another one that becomes rank 0 before that has met its peers again.

        All ranks call it. A process that is not admitted yet warns, and writes nothing.

        Args:
            what: What it does, for a message: "saving the model".
            write: Does it; it must not wait for other ranks.
            stacklevel: Of the warning, as for `warnings.warn`.

        Returns:
            What came of it on rank 0, None elsewhere.
        """
        if self.rank is None:
            if self._session.micro is None:  # a joiner's first batch is asked for where its peers do the same
                warnings.warn(
                    f"not {what}: this process is not admitted to the training yet, and before the first batch none "
                    "is. Write inside the training loop or after it",
                    stacklevel=stacklevel,
                )
            return None
        return self._session.writes.write(self.rank == 0, what, write)

    def first_on_node(self) -> AbstractContextManager[None]:
        """Lets the processes of a machine in one after the other: the first one downloads, the others find it done.

        Nothing in which ranks wait for each other may be called inside.
        """
        return first_on_node(self._session)


def _made_here(loader: Any, what: str) -> ElasticLoader:
    if not isinstance(loader, ElasticLoader):
        raise TypeError(f"{what} needs a loader made by job.dataloader, got {type(loader).__name__}")
    return loader
