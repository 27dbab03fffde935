"""Charts over time as inline SVG: axes, step lines, bands and marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 22, 28
MAX_POINTS = 1500

Point = tuple[float, float]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns round numbers between two, about ``count`` of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, int(high / step + 1e-9) + 1)]


def thin(points: Sequence[Point]) -> list[Point]:
    """Keeps a long curve's shape in few points: the first, lowest, highest and last of each stretch."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / (MAX_POINTS // 4))
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        chosen = {0, len(part) - 1}
        chosen.add(min(range(len(part)), key=lambda n: part[n][1]))
        chosen.add(max(range(len(part)), key=lambda n: part[n][1]))
        kept += [part[n] for n in sorted(chosen)]
    return kept


def short(value: float) -> str:
    """Writes a number in few characters."""
    if value and (abs(value) >= 10_000 or abs(value) < 0.001):
        return f"{value:.1e}"
    return f"{value:g}"


@dataclass(frozen=True)
class Chart:
    """The frame of one chart.

    Attributes:
        title: What it shows, with its unit.
        height: In pixels.
        seconds: The time that its width stands for.
        low: The value at the bottom.
        high: The value at the top.
    """

    title: str
    height: int
    seconds: float
    low: float
    high: float

    def x(self, second: float) -> float:
        """Returns where a moment is."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * second / max(self.seconds, 1e-9), 1)

    def y(self, value: float) -> float:
        """Returns where a value is."""
        span = max(self.high - self.low, 1e-12)
        return round(self.height - BOTTOM - (self.height - TOP - BOTTOM) * (value - self.low) / span, 1)

    def frame(self, body: str, *, whole: bool = False) -> str:
        """Returns the chart with its axes and content.

        Args:
            body: The content.
            whole: Whether values are whole numbers.
        """
        marks = []
        values = ticks(self.low, self.high, 4)
        for value in [v for v in values if not whole or v == int(v)]:
            y = self.y(value)
            marks.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            marks.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{short(value)}</text>')
        for second in ticks(0, self.seconds, 8):
            x = self.x(second)
            marks.append(
                f'<text class="tick" x="{x}" y="{self.height - 8}" text-anchor="middle">{short(second)} s</text>'
            )
        title = f'<text class="title" x="{LEFT}" y="14">{escape(self.title)}</text>'
        box = f'viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.title)}"'
        return f'<svg {box} xmlns="http://www.w3.org/2000/svg">{"".join(marks)}{title}{body}</svg>'

    def line(self, points: Sequence[Point], kind: str) -> str:
        """Returns a curve through points (second, value)."""
        path = " ".join(f"{self.x(t)},{self.y(v)}" for t, v in thin(points))
        return f'<polyline class="{kind}" points="{path}"/>' if path else ""

    def steps(self, points: Sequence[Point], kind: str) -> str:
        """Returns a line that holds each value until the next point, and to the end."""
        return self.line(self.held(points), kind)

    def area(self, points: Sequence[Point], kind: str) -> str:
        """Returns the area under a line that holds its values."""
        held = self.held(points)
        if not held:
            return ""
        outline = [(held[0][0], self.low), *held, (held[-1][0], self.low)]
        path = " ".join(f"{self.x(t)},{self.y(v)}" for t, v in outline)
        return f'<polygon class="{kind}" points="{path}"/>'

    def held(self, points: Sequence[Point]) -> list[Point]:
        """Returns the corners of a line that holds its values until the end."""
        corners: list[Point] = []
        for second, value in points:
            if corners:
                corners.append((second, corners[-1][1]))
            corners.append((second, value))
        if corners:
            corners.append((self.seconds, corners[-1][1]))
        return corners
