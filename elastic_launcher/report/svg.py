"""Charts over time as inline SVG that fits any width: shapes stretch with the page, text and marks keep their size.

Positions across are shares of the width (percent), positions downwards are pixels. What stretches lies in an inner
``svg`` with a view box of its own.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from elastic_launcher.report.words import number

MAX_POINTS = 2000
"""Most points of a curve: more than a screen has pixels to show."""
STRETCH = 1000
"""Width of the inner view box."""
AXIS_WIDTH = 58
"""Pixels left of a chart, for the values of its grid."""
BOTTOM = 22
"""Pixels below a chart, for the times."""
CHARACTER = 6.4
"""Pixels that a character of a label takes, on average and generously."""

Point = tuple[float, float]

_TIME_STEPS = [
    *(unit * factor for unit in (0.001, 0.01, 0.1) for factor in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(60 * factor for factor in (1, 2, 5, 10, 15, 30)),
    *(3600 * factor for factor in (1, 2, 3, 6, 12)),
    *(86400 * factor for factor in (1, 2, 5, 10, 20, 50, 100)),
]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns round numbers between two, about ``count`` of them."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def whole_ticks(high: float, count: int = 4) -> list[float]:
    """Returns whole numbers from 0, about ``count`` of them."""
    raw = max(1.0, high / count)
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.8)
    return [float(value) for value in range(0, math.floor(high) + 1, step)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns powers of ten between two positive numbers, with steps between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / 6))
    factors = (1,) if high / low > 100 else (1, 2, 5)
    values = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def time_ticks(seconds: float, count: int = 8) -> list[tuple[float, str]]:
    """Returns round moments from 0 to ``seconds`` with their labels."""
    step = next((one for one in _TIME_STEPS if seconds / one <= count), seconds / count)
    times = [index * step for index in range(math.floor(seconds / step + 1e-9) + 1)]
    return [(at, _time_label(at, step, seconds) if at else "0") for at in times]


def _time_label(at: float, step: float, seconds: float) -> str:
    if step >= 86400:
        return f"{at / 86400:.4g} d"
    if step >= 3600:
        return f"{at / 3600:g} h"
    if step >= 60 and seconds > 2 * 3600:
        return f"{at // 3600:.0f}:{at % 3600 / 60:02.0f} h"
    return f"{at / 60:g} min" if step >= 60 else f"{at:g} s"


def thin(points: Sequence[Point]) -> list[Point]:
    """Keeps a long curve's shape in few points: the first, lowest, highest and last of each stretch of time."""
    if len(points) <= MAX_POINTS:
        return list(points)
    start, end = points[0][0], points[-1][0]
    width = max(end - start, 1e-9) / (MAX_POINTS // 4) * (1 + 1e-9)
    stretches: dict[int, list[int]] = {}
    for index, (at, value) in enumerate(points):
        known = stretches.setdefault(int((at - start) / width), [index, index, index, index])
        if value < points[known[1]][1]:
            known[1] = index
        if value > points[known[2]][1]:
            known[2] = index
        known[3] = index
    return [points[index] for kept in stretches.values() for index in sorted(set(kept))]


def pieces(points: Sequence[Point]) -> list[list[Point]]:
    """Cuts a curve, thinned, where its value was nan."""
    holes = [at for at, value in points if math.isnan(value)]
    kept = thin([point for point in points if not math.isnan(point[1])])
    cut: dict[int, list[Point]] = {}
    for point in kept:
        cut.setdefault(bisect.bisect(holes, point[0]), []).append(point)
    return list(cut.values())


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a moment, with its CSS class.

    Attributes:
        forms: The same in fewer and fewer words; what has no room in any form is left out.
    """

    second: float
    forms: tuple[str, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """The position of a label: its row, its form, and whether it ends at its moment instead of beginning there."""

    row: int
    text: str
    before: bool


def place(labels: Sequence[Label], seconds: float, width: float, rows: int) -> list[Placed | None]:
    """Puts labels, in order of time, into rows from the left so that none covers another; None where there is no room.

    The width, in pixels, shows so many seconds.
    """
    ends = [-math.inf] * rows
    placed: list[Placed | None] = []
    for label in labels:
        x = width * label.second / max(seconds, 1e-9)
        placed.append(_place(label, x, width, ends))
    return placed


def _place(label: Label, x: float, width: float, ends: list[float]) -> Placed | None:
    for text in label.forms:
        needed = len(text) * CHARACTER + 6
        before = x + needed > width
        left, right = (x - needed, x) if before else (x, x + needed)
        for row, end in enumerate(ends):
            if left >= max(end, 0.0 if before else -1.0):
                ends[row] = right + 6
                return Placed(row, text, before)
    return None


@dataclass(frozen=True, slots=True)
class Chart:
    """The frame of one chart over time.

    Attributes:
        name: Its id in the page.
        unit: In what.
        text: A description, for screen readers.
        seconds: The time that its width shows.
        low: The value at the bottom.
        high: The value at the top.
        top: Pixels above the values, for labels.
        inner: Pixels between ``high`` and ``low``.
        logarithmic: Whether equal distances are equal factors.
    """

    name: str
    title: str
    unit: str
    text: str
    seconds: float
    low: float
    high: float
    top: int = 8
    inner: int = 150
    logarithmic: bool = False

    @property
    def height(self) -> int:
        """The whole height, in pixels."""
        return self.top + self.inner + BOTTOM

    @property
    def floor(self) -> int:
        """The top of its values, in pixels."""
        return self.top + self.inner

    def x(self, second: float) -> float:
        """Returns where a moment is, in percent."""
        return round(100 * min(1.0, max(0.0, second / max(self.seconds, 1e-9))), 3)

    def y(self, value: float) -> float:
        """Returns where a value is, in pixels; one beyond the frame lies on it."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / max(high - low, 1e-300)
        return round(self.floor - self.inner * min(1.0, max(0.0, share)), 1)

    def figure(
        self, shapes: Iterable[str], marks: Iterable[str] = (), *, values: Sequence[float], legend: str = ""
    ) -> str:
        """Returns the chart.

        Args:
            shapes: What stretches with the width.
            marks: What keeps its size, in front of the shapes.
            values: Where the grid is.
            legend: Below it, as HTML.
        """
        grid = "".join(
            f'<line class="grid" x1="0" x2="100%" y1="{self.y(value)}" y2="{self.y(value)}"/>' for value in values
        )
        numbers = "".join(
            f'<text x="{AXIS_WIDTH - 8}" y="{self.y(value) + 4}" text-anchor="end">{escape(number(value))}</text>'
            for value in values
        )
        return self.wrap(grid, shapes, marks, numbers, legend)

    def wrap(self, behind: str, shapes: Iterable[str], marks: Iterable[str], axis: str, legend: str) -> str:
        """Returns the chart with what is left of it, behind it and below it."""
        unit = f" <small>{escape(self.unit)}</small>" if self.unit else ""
        names = f"{self.name}-title {self.name}-text"
        inner = (
            f'<svg width="100%" height="{self.height}" viewBox="0 0 {STRETCH} {self.height}" '
            f'preserveAspectRatio="none">{"".join(shapes)}</svg>'
        )
        return (
            f'<figure id="{self.name}"><figcaption>{escape(self.title)}{unit}</figcaption><div class="chart">'
            f'<svg class="axis" width="{AXIS_WIDTH}" height="{self.height}" aria-hidden="true">{axis}</svg>'
            f'<svg class="plot" height="{self.height}" role="img" aria-labelledby="{names}">'
            f'<title id="{self.name}-title">{escape(self.title)}</title><desc id="{self.name}-text">'
            f"{escape(self.text)}</desc>{behind}{inner}{''.join(marks)}{self._times()}</svg></div>{legend}</figure>"
        )

    def _times(self) -> str:
        parts = [f'<line class="base" x1="0" x2="100%" y1="{self.floor}" y2="{self.floor}"/>']
        found = time_ticks(self.seconds)
        for index, (second, label) in enumerate(found):
            x = self.x(second)
            anchor = "start" if x < 2 else "end" if x > 96 else "middle"
            kind = ' class="wide"' if len(found) > 5 and index % 2 else ""
            parts.append(f'<line class="base" x1="{x}%" x2="{x}%" y1="{self.floor}" y2="{self.floor + 4}"/>')
            parts.append(f'<text{kind} x="{x}%" y="{self.height - 5}" text-anchor="{anchor}">{label}</text>')
        return "".join(parts)

    def curve(self, points: Sequence[Point], kind: str) -> str:
        """Returns a curve through points (second, value), with gaps where the value is nan."""
        runs = [" ".join(f"{10 * self.x(at):.1f},{self.y(value)}" for at, value in run) for run in pieces(points)]
        path = "".join(f"M{run}h.01" for run in runs)  # a point alone is a dot
        return f'<path class="{kind}" d="{path}"/>' if path else ""

    def stairs(self, points: Sequence[Point], kind: str, until: float | None = None) -> str:
        """Returns a line that holds each value until the next point, the last until the end; nan makes a gap."""
        runs = self._held(points, until)
        path = "".join("M" + " ".join(f"{10 * self.x(at):.2f},{self.y(value)}" for at, value in run) for run in runs)
        return f'<path class="{kind}" d="{path}"/>' if path else ""

    def area(self, points: Sequence[Point], kind: str) -> str:
        """Returns the area under a line that holds its values."""
        path = ""
        for run in self._held(points):
            outline = [(run[0][0], self.low), *run, (run[-1][0], self.low)]
            path += "M" + " ".join(f"{10 * self.x(at):.2f},{self.y(value)}" for at, value in outline) + "z"
        return f'<path class="{kind}" d="{path}"/>' if path else ""

    def _held(self, points: Sequence[Point], until: float | None = None) -> list[list[Point]]:
        runs: list[list[Point]] = [[]]
        ends = [*(at for at, _ in points[1:]), self.seconds if until is None else until][: len(points)]
        for (at, value), end in zip(points, ends, strict=True):
            if math.isnan(value):
                runs.append([])
            else:
                runs[-1] += [(at, value), (end, value)]
        return [run for run in runs if run]

    def upright(self, second: float, kind: str, top: float | None = None, title: str = "") -> str:
        """Returns a line from top to bottom at a moment; ``title`` is its tooltip."""
        x = self.x(second)
        said = f"<title>{escape(title)}</title>" if title else ""
        ends = f'y1="{self.top if top is None else top}" y2="{self.floor}"'
        return f'<line class="{kind}" x1="{x}%" x2="{x}%" {ends}>{said}</line>'

    def stretch(self, start: float, end: float, kind: str, title: str = "") -> str:
        """Returns a band from top to bottom between two moments."""
        x = self.x(start)
        said = f"<title>{escape(title)}</title>" if title else ""
        size = f'width="{max(0.0, round(self.x(end) - x, 3))}%" height="{self.inner}"'
        return f'<rect class="{kind}" x="{x}%" y="{self.top}" {size}>{said}</rect>'
