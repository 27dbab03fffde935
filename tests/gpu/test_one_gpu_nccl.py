"""NCCL in a world of one: a communicator is made, aborted, and made again in the same process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from elastic_launcher.torch.collectives import nccl

SECONDS = 60.0


def build(store: HashStore, name: str) -> Any:
    device = torch.device("cuda", 0)
    gpu = nccl.gpu_of(device)
    assert gpu, "NCCL can't use this GPU"
    return nccl.build(PrefixStore(name, store), 0, 1, device, [gpu], SECONDS, SECONDS)


def reduced(group: Any) -> list[float]:
    """Reduces in a group, through what waits on the host."""
    tensor = torch.arange(4.0, device="cuda")
    nccl.HostWork(group.allreduce([tensor], dist.AllreduceOptions()), lambda: None).wait()
    return tensor.tolist()


def test_a_communicator_is_made_aborted_and_made_again() -> None:
    store = HashStore()
    for name in ("first", "second", "third"):
        group = build(store, name)
        assert reduced(group) == [0.0, 1.0, 2.0, 3.0]
        nccl.abort(group)
    assert torch.ones(3, device="cuda").sum().item() == 3, "the GPU goes on"


def test_a_reduction_of_a_group_that_was_cut_does_not_end_as_if_all_were_well() -> None:
    def cut() -> None:
        raise RuntimeError("the group was cut")

    group = build(HashStore(), "cut")
    work = nccl.HostWork(group.allreduce([torch.ones(4, device="cuda")], dist.AllreduceOptions()), cut)
    nccl.abort(group)
    with pytest.raises(RuntimeError):
        work.wait()


def test_two_ranks_on_one_gpu_have_no_communicator() -> None:
    gpu = nccl.gpu_of(torch.device("cuda", 0))
    assert nccl.build(HashStore(), 0, 2, torch.device("cuda", 0), [gpu, gpu], SECONDS, SECONDS) is None
