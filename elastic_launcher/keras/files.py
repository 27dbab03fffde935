"""Has a model write its files on rank 0 alone, or on the next one to be it if that is lost meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from elastic_launcher.keras.job import current

FILES = ("save", "save_weights", "export")


def write_on_rank_0(model: Any) -> None:
    """Has the methods of a model that write files do nothing on other ranks."""
    for name in FILES:
        if name not in vars(model):
            object.__setattr__(model, name, _on_rank_0(getattr(model, name)))


def _on_rank_0(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def gated(*arguments: Any, **named: Any) -> Any:
        return current()._write_on_main("saving a model", functools.partial(write, *arguments, **named), 4)

    return gated
