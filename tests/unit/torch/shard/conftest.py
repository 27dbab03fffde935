"""What tests of sharded models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture
def node_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own default group, of a node with one rank."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
