"""Statistical progress: with the base batch it is the number of samples, and larger batches count by their gain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.adaptive.progress import Progress


@given(st.integers(1, 500), st.integers(1, 600), st.integers(1, 3))
def test_with_the_base_batch_epochs_end_exactly_where_data_passes_do(
    dataset_size: int, base_batch_size: int, epochs: int
) -> None:
    progress = Progress()
    for epoch in range(1, epochs + 1):
        left = dataset_size
        while left:
            assert progress.epochs(dataset_size) < epoch
            samples = min(base_batch_size, left)
            progress, left = progress.after(samples, 1.0, 1.0), left - samples
        assert progress.epochs(dataset_size) == epoch


@pytest.mark.parametrize(("scale", "gain"), [(1.0, 1.0), (4.0, 1.0), (4.0, 2.5), (4.0, 4.0)])
def test_a_full_step_is_as_many_steps_of_the_base_batch_as_its_gain(scale: float, gain: float) -> None:
    progress = Progress(640.0).after(int(64 * scale), gain, scale)
    assert progress.samples / 64 == pytest.approx(10 + gain, rel=1e-15)


def test_the_last_step_of_an_epoch_counts_by_its_samples() -> None:
    assert Progress().after(32, 3.0, 4.0) == Progress(24.0)
