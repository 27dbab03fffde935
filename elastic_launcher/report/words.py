"""Formats numbers for people: few characters, with their unit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from decimal import Decimal

NONE = "–"
"""Stands where there is no value."""


def duration(seconds: float) -> str:
    """Returns a time span: ``31 ms``, ``8.4 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def moment(seconds: float) -> str:
    """Returns how long after the start something was: ``8.4 s``, ``3:20 min``, ``2:05:07 h``."""
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = max(60, int(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d} h"


def clock(seconds: float) -> str:
    """Returns a time of day, in UTC, of seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def number(value: object) -> str:
    """Returns a value in at most four digits; a text, such as nan, as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NONE if value is None else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{Decimal(value):.3e}"  # a script may log a whole number that no float holds
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"


def compact(count: int) -> str:
    """Returns a count, a large one in millions or billions."""
    for least, unit, name in ((10**12, 10**12, "T"), (10**9, 10**9, "G"), (10**7, 10**6, "M")):
        if count >= least:
            return f"{count / unit:.4g} {name}"
    return f"{count:,}"


def size(count: int) -> str:
    """Returns a number of bytes: ``812 B``, ``3.4 MB``, ``12 GB``."""
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1000
        del units[0]
    return f"{amount:.{0 if amount >= 9.95 or units[0] == 'B' else 1}f} {units[0]}"


def rate(per_second: float) -> str:
    """Returns samples per second, as many digits as matter."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def share(part: float) -> str:
    """Returns a share in percent."""
    return f"{part:.1%}"


def plural(count: int, word: str) -> str:
    """Returns a count with its word: ``1 node``, ``3 nodes``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def listing(numbers: Iterable[int]) -> str:
    """Returns numbers in their order, runs of them in a short form: ``1, 3-5``."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(parts) or NONE


def first_line(text: object) -> str:
    """Returns the text before the first line break."""
    lines = str(text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
