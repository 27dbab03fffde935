"""Loads libraries that come with extras of the distribution, where they are used."""

from __future__ import annotations

import importlib
from typing import Any


class MissingLibrary(Exception):
    """A library that is needed is not installed; the message says which, what for, and what to install."""


def needed(module: str, purpose: str, extra: str) -> Any:
    """Returns a module.

    Args:
        module: Its name.
        purpose: What it is needed for, as a sentence.
        extra: The extra of this distribution that brings it.

    Raises:
        MissingLibrary: If it can't be loaded.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibrary(
            f"{purpose}, and {error.name or module} is not installed: pip install 'elastic-launcher[{extra}]'"
        ) from error
