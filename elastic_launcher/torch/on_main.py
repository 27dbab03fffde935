"""An object of the script's own that exists only on rank 0, such as the writer of a log."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from typing import Any

ENDS = ("close", "finish")
"""What closes one: of files and TensorBoard's writers, of Weights & Biases' runs."""


class OnMain:
    """Stands for an object whose methods are called on rank 0 and do nothing elsewhere; made by `Job.on_main`.

    The object is made at its first use there. Where another process becomes rank 0 it makes one of its own; the one
    before is closed at its next use, or when the process ends.
    """

    def __init__(self, is_main: Callable[[], bool], make: Callable[[], Any]) -> None:
        self._is_main = is_main
        self._make = make
        self._made: Any = None
        self._process = os.getpid()
        atexit.register(self._close)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not self._is_main():
                self._close()
                return None
            if self._made is None:
                self._made = self._make()
            return getattr(self._made, name)(*arguments, **options)

        return call

    def _close(self) -> None:
        made, self._made = self._made, None
        if made is None or os.getpid() != self._process:  # a child that the script has forked
            return
        end = next((getattr(made, name) for name in ENDS if hasattr(made, name)), None)
        if end is not None:
            with contextlib.suppress(Exception):  # that of a process which ends, or is rank 0 no more
                end()
