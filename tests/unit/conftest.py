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
