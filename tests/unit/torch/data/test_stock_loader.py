"""What one of torch's own loaders says of its data is all of it, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sized

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler, Subset, TensorDataset

from elastic_launcher.torch.data.stock_loader import read_loader

DATA = TensorDataset(torch.arange(20.0))


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_a_sampler_over_another_number_of_samples_is_refused(kind: Callable[[Sized], Sampler[int]]) -> None:
    """The job would train on all samples where the loader gives some of them."""
    some: Sized = range(10)
    with pytest.raises(TypeError, match=r"Sampler is over 10 samples, and its data set has 20.*Subset"):
        read_loader(DataLoader(DATA, sampler=kind(some)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_of_a_subset_is_taken(shuffle: bool) -> None:
    found = read_loader(DataLoader(Subset(DATA, range(10)), batch_size=4, shuffle=shuffle))
    assert (len(found.dataset), found.shuffle) == (10, shuffle)  # type: ignore[arg-type]


def test_workers_that_are_not_forked_are_refused() -> None:
    """The job forks them, which a script that asks for another start could not bear."""
    with pytest.raises(TypeError, match=r"starts its workers by 'spawn'.*leave multiprocessing_context= out"):
        read_loader(DataLoader(DATA, num_workers=1, multiprocessing_context="spawn"))
    assert read_loader(DataLoader(DATA, num_workers=1, multiprocessing_context="fork")).options["num_workers"] == 1
