"""These tests need one NVIDIA GPU, and fail where there is none: `make test-gpu` passes only where they have run."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.fail(
            "there is no GPU that torch can use (torch.cuda.is_available() is False): run `make test-gpu` on a machine "
            "with an NVIDIA GPU and a torch built for CUDA",
            pytrace=False,
        )
