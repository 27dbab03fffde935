"""Which samples an optimizer step has, as tests expect it where the batch size stays the same."""

from __future__ import annotations

from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.sampling import Indices, indices


def step_indices(
    dataset_size: int,
    global_batch_size: int,
    seed: int,
    epoch: int,
    step_in_epoch: int,
    shuffle: bool = True,
    drop_last: bool = False,
) -> Indices:
    """Returns the samples of one optimizer step, in the order in which ranks divide them.

    Args:
        dataset_size: Samples in the data set.
        global_batch_size: Samples of a full step.
        seed: Of the training.
        epoch: Counted from 0.
        step_in_epoch: Counted from 0.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether an incomplete last step is left out.

    Raises:
        ValueError: If a number is not a whole one, or the epoch has no such step.
    """
    steps = DataPass(BatchSchedule.fixed(global_batch_size), dataset_size, drop_last=drop_last)
    found = steps.samples(step_in_epoch)
    return indices(dataset_size, seed, epoch, found.start, found.start + found.count, shuffle)
