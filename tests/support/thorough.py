"""Cases of a test that `make test` leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_but(cases: Iterable[str], *kept: str) -> list[Any]:
    """Returns the cases as parameters, of which all but those that are kept are marked as thorough."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.thorough) for case in cases]
