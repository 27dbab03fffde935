"""Counts what modules register, so that a model is looked through again only after one of its parts was replaced."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

_count = 0


def registrations() -> int:
    """Returns how many parameters, buffers and submodules any module of this process has been given so far."""
    return _count


def _note(module: nn.Module, name: str, value: Any) -> None:
    global _count
    _count += 1


def _note_buffer(module: nn.Module, name: str, value: Any) -> None:
    if module._buffers.get(name) is None:  # not those that a forward pass gives another tensor
        _note(module, name, value)


register_module_module_registration_hook(_note)
register_module_parameter_registration_hook(_note)
register_module_buffer_registration_hook(_note_buffer)
