"""Reads quantities of the Kubernetes API, such as ``"1k"`` or ``"1e3"``; those of resources are never negative."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_QUANTITY = re.compile(r"(?P<number>\d{1,19}(\.\d{0,18})?|\.\d{1,18})(?P<unit>[numkMGTPE]|[KMGTPE]i|[eE][-+]?\d{1,2})?")
_UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def whole(quantity: Any) -> int:
    """Returns a quantity of the API, rounded down.

    Raises:
        ValueError: If it is none, or negative.
    """
    return int(exact(quantity))


def exact(quantity: Any) -> Decimal:
    """Returns a quantity of the API.

    Raises:
        ValueError: If it is none, or negative.
    """
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity of 0 or more")
    number, unit = Decimal(found["number"]), found["unit"] or ""
    if unit in _BINARY:
        return number * Decimal(2) ** _BINARY[unit]
    return number.scaleb(_UNITS[unit] if unit in _UNITS else int(unit[1:]))
