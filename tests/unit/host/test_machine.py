"""What is read of the machine, without torch."""

from __future__ import annotations

import pytest

from elastic_launcher.host.machine import cores, gpus, threads_per_rank


@pytest.mark.parametrize(
    ("visible", "ids"),
    [("", []), ("-1", []), ("0", ["0"]), ("2, 0", ["2", "0"]), ("0,-1,1", ["0"]), ("MIG-a,GPU-b", ["MIG-a", "GPU-b"])],
)
def test_gpus_are_those_that_cuda_would_see(visible: str, ids: list[str]) -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": visible}) == ids


@pytest.mark.parametrize(("core_count", "ranks", "threads"), [(2, 1, 2), (2, 3, 1), (64, 3, 21), (8, 8, 1)])
def test_ranks_divide_the_cores(core_count: int, ranks: int, threads: int) -> None:
    assert threads_per_rank(core_count, ranks) == threads


def test_there_is_a_core() -> None:
    assert cores() >= 1
