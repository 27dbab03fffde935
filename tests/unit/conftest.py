"""What units share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

TAKEN = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Gives this process back what a command that a test calls in it has made of its signals."""
    before = {number: signal.getsignal(number) for number in TAKEN}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def node_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own default group, of a node with one rank."""
    import torch.distributed as dist  # takes seconds, and most units need none

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
