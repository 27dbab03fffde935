"""What `init` reads: how the process was started, and the batch sizes from one place or the same from two."""

from __future__ import annotations

import pytest
import torch

from elastic_launcher.torch.membership.environment import choose_device, read_batch, read_launch
from elastic_launcher.variables import GLOBAL_BATCH_SIZE, MAX_BATCH_PER_GPU

GIVEN = {GLOBAL_BATCH_SIZE: "256", MAX_BATCH_PER_GPU: "64"}
FINDS = GIVEN | {MAX_BATCH_PER_GPU: "auto"}


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ((256, 64), {}),
        ((None, None), GIVEN),
        ((256, 64), GIVEN),
        ((256, None), {MAX_BATCH_PER_GPU: "64"}),
        ((None, 64), {GLOBAL_BATCH_SIZE: "256"}),
    ],
)
def test_batch_sizes_come_from_the_arguments_or_the_environment(
    arguments: tuple[int | None, int | None], environment: dict[str, str]
) -> None:
    assert read_batch(*arguments, environment) == (256, 64)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((128, 64), GIVEN, "global_batch_size is 128 in init() but 256 in ELASTIC_GLOBAL_BATCH_SIZE"),
        ((256, 32), GIVEN, "max_batch_per_gpu is 32 in init() but 64 in ELASTIC_MAX_BATCH_PER_GPU"),
        ((None, 64), {}, "global_batch_size is missing"),
        ((256, None), {}, "--max-batch-per-gpu"),
        ((0, 64), {}, "global_batch_size is 0"),
        ((256, 2.5), {}, "max_batch_per_gpu is 2.5"),
        ((256, "most"), {}, "max_batch_per_gpu is 'most'; it must be a whole number, or 'auto'"),
        ((256, "auto"), GIVEN, "max_batch_per_gpu is 'auto' in init() but 64 in ELASTIC_MAX_BATCH_PER_GPU"),
        ((256, 64), FINDS, "max_batch_per_gpu is 64 in init() but auto in ELASTIC_MAX_BATCH_PER_GPU"),
        ((True, 64), {}, "global_batch_size is True"),
        ((None, 64), {GLOBAL_BATCH_SIZE: "many"}, "ELASTIC_GLOBAL_BATCH_SIZE is 'many'"),
        ((None, 64), {GLOBAL_BATCH_SIZE: "0"}, "ELASTIC_GLOBAL_BATCH_SIZE is 0"),
    ],
)
def test_batch_sizes_that_differ_or_make_no_sense_are_refused(
    arguments: tuple[int | None, int | str | None], environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        read_batch(*arguments, environment)
    assert said in str(caught.value)


def test_a_micro_batch_that_is_to_be_found_needs_the_global_batch() -> None:
    assert read_batch(256, "auto", {}) == (256, None)
    assert read_batch(None, "auto", {GLOBAL_BATCH_SIZE: "256"}) == (256, None)
    assert read_batch(None, None, FINDS) == read_batch(None, "auto", FINDS) == (256, None)


def test_how_the_process_was_started() -> None:
    alone = read_launch({})
    assert (alone.control, alone.member, alone.torchrun) == (None, None, False)
    torchrun = read_launch({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"})
    assert (torchrun.control, torchrun.torchrun, torchrun.local_rank) == (None, True, 1)
    ours = read_launch({"ELASTIC_CONTROL": "/c.json", "ELASTIC_MEMBER": "3", "ELASTIC_NODE": "2", "WORLD_SIZE": "2"})
    assert (ours.control, ours.member, ours.node, ours.torchrun) == ("/c.json", 3, 2, False)
    with pytest.raises(RuntimeError, match="ELASTIC_NODE"):
        read_launch({"ELASTIC_CONTROL": "/c.json", "ELASTIC_MEMBER": "3"})


@pytest.mark.parametrize(("gpus", "ranks", "device"), [(0, 2, "cpu"), (2, 2, "cuda:1"), (4, 2, "cuda:1")])
def test_all_ranks_of_a_node_are_on_gpus_or_none_is(
    gpus: int, ranks: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, gpus)
    assert str(choose_device(1, ranks)) == device


def test_more_ranks_than_gpus_are_refused_on_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, 1)
    for local_rank in (0, 1):
        with pytest.raises(RuntimeError, match="2 ranks, and each sees 1 GPU: start at most 1"):
            choose_device(local_rank, 2)


def test_a_rank_beyond_the_gpus_is_refused_where_nothing_says_how_many_ranks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pretend(monkeypatch, 1)
    launch = read_launch({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"})
    with pytest.raises(RuntimeError, match="2 ranks, and each sees 1 GPU: start at most 1"):
        choose_device(launch.local_rank, launch.local_world_size)


def _pretend(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Has torch see GPUs that are not there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
