"""Imports of libraries as large as torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector away from what is imported within, also later and at the end of the process.

    torch makes 180,000 objects that stay. To look for garbage among them takes a seventh of the import's time, and
    a third of a second at the end of the process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
