"""The charts of a job's history over one time: its size against the hints, its nodes, its loss and its speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from elastic_launcher.report.describe import CAUSES
from elastic_launcher.report.history import Generation, History, NodeLife
from elastic_launcher.report.svg import Chart, Label, Placed, Point, log_ticks, place, ticks, whole_ticks
from elastic_launcher.report.words import duration, listing, moment, number, plural, rate

WIDE, NARROW = 860, 300
"""Pixels of a chart for which labels are placed: on a screen, and on a telephone."""
LABEL_ROW = 16
MOST_OWN_LANES = 20
"""Up to so many nodes have a line each."""
MOST_LANES = 64
MOST_LINES = 40
"""With more generations, charts below the first leave their lines out."""
LANE = 17
MOST_TOLD = 40
"""Generations in a chart's text for screen readers; the table has them all."""
MOST_MARKS = 200
"""Signs of each sort in a chart; of more checkpoints, some are left out."""
MARKS = {
    "node_lost": ("×", "bad", "node lost"),
    "node_failed": ("×", "bad", "node failed"),
    "notice": ("▼", "mark cause-notice", "notice"),
    "checkpoint_saved": ("◆", "mark saved", "checkpoint"),
    "quota_wait": ("‖", "mark waits", "waiting for quota"),
    "nodes_wait": ("‖", "mark waits", "waiting for nodes"),
}
"""The sign of each kind of event that is marked, its class, and its name."""
BANDS = ("limit", "allowed", "guaranteed")
LOG_FROM = 30.0
"""A loss whose largest and smallest value are further apart than this is drawn on a logarithmic scale."""


def size_chart(history: History) -> str:
    """Draws the world size against the bands of the hints, with each generation's cause and pause."""
    generations = history.generations
    sizes = _held(history, [float(one.world_size) for one in generations])
    bands = {name: _band(history, name) for name in BANDS}
    high, hidden = _highest(sizes, bands)
    labels = [_label(one) for one in generations]
    wide = place(labels, history.seconds, WIDE, 2)
    narrow = place(labels, history.seconds, NARROW, 3)
    rows = 1 + max((placed.row for placed in (*wide, *narrow) if placed is not None), default=0)
    text = "; ".join(
        f"from {moment(one.at)} on {plural(one.world_size, 'rank')} ({one.cause})" for one in generations[:MOST_TOLD]
    )
    top = rows * LABEL_ROW + 8
    chart = Chart("size", "World size", "ranks", text, history.seconds, 0.0, high, top=top, inner=170)
    shapes = [
        *(chart.area(points, f"band-{name}") for name, points in bands.items()),
        *(chart.stairs(points, f"line-{name}") for name, points in bands.items()),
        chart.area(sizes, "ranks-area"),
        chart.stairs(sizes, "ranks"),
    ]
    marks = [_pause(chart, one) for one in generations] + _labels(chart, labels, wide, narrow)
    marks += [_dot(chart, one) for one in generations]
    marks += _marks(chart, history)
    return chart.figure(shapes, marks, values=whole_ticks(high), legend=_size_legend(history, hidden))


def _held(history: History, values: Sequence[float]) -> list[Point]:
    """Returns a value of each generation while it trained, and a gap where none did."""
    points: list[Point] = []
    following = [*(one.at for one in history.generations[1:]), history.seconds]
    for one, value, then in zip(history.generations, values, following, strict=False):
        points.append((one.at, value))
        if one.until < then:
            points.append((one.until, math.nan))
    return points


def _band(history: History, name: str) -> list[Point]:
    points: list[Point] = [
        (quota.at, math.nan if getattr(quota, name) is None else float(getattr(quota, name)))
        for quota in history.quotas
    ]
    return points if any(not math.isnan(value) for _, value in points) else []


def _highest(sizes: Sequence[Point], bands: dict[str, list[Point]]) -> tuple[float, float | None]:
    """Returns the top of the chart, and the largest number that it does not reach."""
    ranks = max((value for _, value in sizes if not math.isnan(value)), default=1.0)
    wanted = max([ranks, *(value for points in bands.values() for _, value in points if not math.isnan(value))])
    top = min(wanted, max(4.0, 3.0 * ranks))
    return top * 1.08 + 0.15, (wanted if wanted > top else None)


def _label(one: Generation) -> Label:
    cause = one.cause or "resize"
    paused = (
        f"{one.number} {cause} · {duration(one.pause_seconds)}" if one.pause_seconds > 0 else f"{one.number} {cause}"
    )
    return Label(one.at, (paused, f"{one.number} {cause}", f"{one.number}"), _cause(one))


def _cause(one: Generation) -> str:
    return f"cause-{one.cause}" if one.cause in CAUSES else "cause-other"


def _title(one: Generation) -> str:
    paused = f", pause {duration(one.pause_seconds)}" if one.number > 1 else ""
    return escape(
        f"generation {one.number} at {moment(one.at)}: {plural(one.world_size, 'rank')} on nodes {listing(one.nodes)} "
        f"({one.cause}){paused}"
    )


def _pause(chart: Chart, one: Generation) -> str:
    said = f"pause of {duration(one.pause_seconds)}"
    return chart.stretch(one.at - one.pause_seconds, one.at, "pause", said) if one.pause_seconds > 0 else ""


def _dot(chart: Chart, one: Generation) -> str:
    center = f'cx="{chart.x(one.at)}%" cy="{chart.y(one.world_size)}" r="3.5"'
    return f'<circle class="dot {_cause(one)}" {center}><title>{_title(one)}</title></circle>'


def _marks(chart: Chart, history: History) -> list[str]:
    """Returns the signs of losses, notices, checkpoints and waits at the chart's foot, each with its meaning."""
    every = math.ceil(len(history.marks) / MOST_MARKS) or 1
    rare = [mark for mark in history.marks if mark.kind != "checkpoint_saved"]
    saved = [mark for mark in history.marks if mark.kind == "checkpoint_saved"][::every]
    foot = chart.top + chart.inner - 4
    return [
        f'<text class="{MARKS[mark.kind][1]}" x="{chart.x(mark.at)}%" y="{foot}" text-anchor="middle">'
        f"{MARKS[mark.kind][0]}<title>{escape(f'at {moment(mark.at)}: {mark.text}')}</title></text>"
        for mark in (*saved, *rare[:MOST_MARKS])
    ]


def _labels(
    chart: Chart, labels: Sequence[Label], wide: Sequence[Placed | None], narrow: Sequence[Placed | None]
) -> list[str]:
    """Returns the labels as wide and narrow screens show them, in front of the lines that lead to their moments."""
    leads, texts = [], []
    for label, one, other in zip(labels, wide, narrow, strict=True):
        for placed, screen in [(one, "")] if one == other else [(one, "wide"), (other, "narrow")]:
            top = chart.top if placed is None else 3 + placed.row * LABEL_ROW
            leads.append(chart.upright(label.second, f"lead {label.kind} {screen}", top))
            texts.append(_text(chart, label, placed, screen))
    return leads + texts


def _text(chart: Chart, label: Label, placed: Placed | None, kind: str) -> str:
    if placed is None:
        return ""
    end, shift = ("end", -4) if placed.before else ("start", 4)
    position = f'x="{chart.x(label.second)}%" y="{12 + placed.row * LABEL_ROW}" dx="{shift}" text-anchor="{end}"'
    return f'<text class="label {label.kind} {kind}" {position}>{escape(placed.text)}</text>'


def _size_legend(history: History, hidden: float | None) -> str:
    parts = ['<i class="key ranks"></i>ranks that train']
    if any(one.pause_seconds > 0 for one in history.generations):
        parts.append('<i class="key pause"></i>pause')
    given = {name for quota in history.quotas for name in BANDS if getattr(quota, name) is not None}
    keys = [f'<i class="key band-{name}"></i>{name}' for name in reversed(BANDS) if name in given]
    if keys:
        parts += ["GPUs by the quota hint:", *keys]
    there = {mark.kind for mark in history.marks}
    parts += [f'<b class="{kind}">{sign}</b> {name}' for one, (sign, kind, name) in MARKS.items() if one in there]
    if hidden is not None:
        parts.append(f"(up to {number(hidden)}, above the chart)")
    return legend(parts)


def legend(parts: Iterable[str]) -> str:
    """Returns what stands below a chart, as HTML."""
    return f'<p class="legend">{" ".join(f"<span>{part}</span>" for part in parts)}</p>'


def node_chart(history: History) -> str:
    """Draws when each node was started, when it trained, and how it ended; empty without nodes."""
    if not history.nodes:
        return ""
    shared = len(history.nodes) > MOST_OWN_LANES
    lanes = _lanes(history) if shared else [[life] for life in history.nodes]
    drawn = lanes[:MOST_LANES]
    text = "; ".join(_life(life) for life in history.nodes[:100])
    chart = Chart("nodes", "Nodes", "", text, history.seconds, 0.0, 1.0, top=2, inner=LANE * len(drawn) + 4)
    marks = [_lane(chart, life, 4 + row * LANE) for row, lane in enumerate(drawn) for life in lane]
    names = [] if shared else [(4 + row * LANE, lane[0].node) for row, lane in enumerate(drawn)]
    axis = "".join(f'<text x="50" y="{y + 10}" text-anchor="end">node {node}</text>' for y, node in names)
    parts = [
        '<i class="key starting"></i>starts and warms up beside the training',
        '<i class="key training"></i>trains',
    ]
    if any(life.noticed is not None for life in history.nodes):
        parts.append('<b class="cause-notice">▼</b> notice')
    if any(life.end in ("failed", "lost") for life in history.nodes):
        parts.append('<b class="bad">×</b> failed or lost')
    if shared:
        parts.append(f"{plural(len(history.nodes), 'node')}; one that follows another may stand in its line")
    if len(lanes) > len(drawn):
        parts.append(f"{plural(len(lanes) - len(drawn), 'line')} not drawn")
    return chart.wrap("".join(_lines(chart, history)), (), marks, axis, legend(parts))


def _lanes(history: History) -> list[list[NodeLife]]:
    """Puts nodes that were not there at the same time into one line."""
    lanes: list[list[NodeLife]] = []
    free: list[float] = []
    for life in sorted(history.nodes, key=lambda life: life.started):
        end = history.seconds if life.ended is None else life.ended
        row = next((row for row, since in enumerate(free) if since <= life.started), None)
        if row is None:
            lanes.append([life])
            free.append(end)
        else:
            lanes[row].append(life)
            free[row] = end
    return lanes


def _lane(chart: Chart, life: NodeLife, y: int) -> str:
    end = chart.seconds if life.ended is None else life.ended
    warm_until = end if life.admitted is None else life.admitted
    said = f"<title>{escape(_life(life))}</title>"
    parts = [_bar(chart, life.started, warm_until, y, "starting", said)]
    if life.admitted is not None:
        parts.append(_bar(chart, life.admitted, end, y, "training", said))
    if life.noticed is not None:
        x = chart.x(life.noticed)
        parts.append(f'<text class="mark cause-notice" x="{x}%" y="{y + 10}" text-anchor="middle">▼{said}</text>')
    if life.end in ("failed", "lost"):
        parts.append(f'<text class="bad" x="{chart.x(end)}%" y="{y + 11}" text-anchor="middle">×{said}</text>')
    return "".join(parts)


def _bar(chart: Chart, start: float, end: float, y: int, kind: str, said: str) -> str:
    x = chart.x(start)
    width = max(0.15, round(chart.x(end) - x, 3))
    return f'<rect class="bar {kind}" x="{x}%" y="{y}" width="{width}%" height="{LANE - 5}" rx="2">{said}</rect>'


def _life(life: NodeLife) -> str:
    parts = [f"node {life.node} was started at {moment(life.started)}"]
    if life.admitted is not None:
        parts.append(f"trained from {moment(life.admitted)}")
    if life.noticed is not None:
        parts.append(f"was given notice at {moment(life.noticed)}")
    if life.ended is not None:
        parts.append(f"{'had left' if life.end == 'left' else life.end} at {moment(life.ended)}")
    return ", ".join(parts)


def loss_chart(history: History) -> str:
    """Draws the loss; what was not finite is marked at the top."""
    good = [value for _, value in history.loss if not math.isnan(value)]
    broken = [at for at, value in history.loss if math.isnan(value)]
    if not history.loss:
        return ""
    low, high = min(good, default=0.0), max(good, default=1.0)
    logarithmic = low > 0 and high / low > LOG_FROM
    if logarithmic:
        low, high = low / 1.2, high * 1.2
    else:
        margin = (high - low or abs(high) or 1.0) * 0.06
        low, high = (0.0 if 0 <= low < 0.35 * high else low - margin), high + margin
    last = f"last {number(good[-1])}, least {number(min(good))}" if good else "never a finite number"
    text = last + (f"; not a finite number in {plural(len(broken), 'report')}" if broken else "")
    unit = "mean over a step's samples" + (", logarithmic" if logarithmic else "")
    top = LABEL_ROW + 6 if broken else 8
    chart = Chart("loss", "Loss", unit, text, history.seconds, low, high, top=top, inner=150, logarithmic=logarithmic)
    marks = _behind(chart, history)
    for start, end in _spells(history.loss):
        said = f"the loss was not a finite number at {moment(start)}"
        marks.append(chart.stretch(start, end, "nan", said))
        marks.append(
            f'<text class="bad" x="{chart.x(start)}%" y="13" text-anchor="middle">×<title>{said}</title></text>'
        )
    values = log_ticks(low, high) if logarithmic else ticks(low, high, 4)
    note = legend(['<b class="bad">×</b> not a finite number']) if broken else ""
    return chart.figure([chart.curve(history.loss, "loss")], marks, values=values, legend=note)


def _spells(loss: Sequence[Point], most: int = 60) -> list[tuple[float, float]]:
    """Returns from when to when the loss was not finite; near ones are one when there are many."""
    spells: list[list[float]] = []
    before = False
    for at, value in loss:
        if math.isnan(value):
            if before:
                spells[-1][1] = at
            else:
                spells.append([at, at])
        before = math.isnan(value)
    group = math.ceil(len(spells) / most)
    merged = [spells[index : index + group] for index in range(0, len(spells), group)] if spells else []
    return [(some[0][0], some[-1][1]) for some in merged]


def speed_chart(history: History) -> str:
    """Draws the samples per second, and each generation's mean; empty before they are known."""
    if not history.speed:
        return ""
    means = _held(history, [one.samples_per_second or math.nan for one in history.generations])
    known = [value for _, value in means if not math.isnan(value)]
    high = _calm_top([value for _, value in history.speed], known)
    text = "; ".join(
        f"{rate(one.samples_per_second)} with {plural(one.world_size, 'rank')}"
        for one in history.generations[:MOST_TOLD]
        if one.samples_per_second
    )
    chart = Chart("speed", "Samples per second", "", text, history.seconds, 0.0, high, inner=130)
    until = history.speed[-1][0]
    shapes = [chart.curve(history.speed, "speed"), chart.stairs(means, "speed-mean", until)]
    keys = ['<i class="key speed"></i>between two reports', '<i class="key speed-mean"></i>mean of the generation']
    return chart.figure(shapes, _behind(chart, history), values=ticks(0.0, high, 4), legend=legend(keys))


def batch_chart(history: History) -> str:
    """Draws the global batch; empty where it never changed."""
    if not history.batches:
        return ""
    sizes = [(at, float(size)) for at, size in history.batches]
    high = max(size for _, size in sizes) * 1.08
    text = "; ".join(f"{number(size)} from {moment(at)} on" for at, size in history.batches[:MOST_TOLD])
    chart = Chart("batch", "Global batch", "samples", text, history.seconds, 0.0, high, inner=110)
    return chart.figure([chart.stairs(sizes, "ranks")], _behind(chart, history), values=whole_ticks(high))


ADAPTIVE = {
    "noise_scale": ("Noise scale", "samples: a batch of so many is as much signal as noise"),
    "efficiency": ("Efficiency", "what a sample is worth at that batch, over one of the first batch"),
    "lr_factor": ("Learning-rate factor", "mean over all parameter groups"),
}
"""The charts of an adaptive batch: title and unit, by the value's name."""


def adaptive_charts(history: History) -> str:
    """Draws the values of an adaptive batch; empty for a fixed one."""
    return "\n".join(_adaptive_chart(history, name) for name in ADAPTIVE if history.adaptive.get(name))


def _adaptive_chart(history: History, name: str) -> str:
    (title, unit), points = ADAPTIVE[name], history.adaptive[name]
    values = [value for _, value in points]
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low > LOG_FROM
    low, high = (low / 1.2, high * 1.2) if logarithmic else (0.0, high * 1.08 or 1.0)
    text = f"last {number(values[-1])}, least {number(min(values))}, most {number(max(values))}"
    unit += ", logarithmic" if logarithmic else ""
    chart = Chart(name, title, unit, text, history.seconds, low, high, inner=90, logarithmic=logarithmic)
    marks = log_ticks(low, high) if logarithmic else ticks(low, high, 3)
    return chart.figure([chart.curve(points, "speed")], _behind(chart, history), values=marks)


def _calm_top(values: Sequence[float], means: Sequence[float]) -> float:
    """Returns a top that a single outlier does not raise."""
    ordered = sorted(values)
    usual = ordered[min(len(ordered) - 1, int(0.995 * len(ordered)))]
    top = ordered[-1] if ordered[-1] < 2 * usual else usual
    return max([top, *means]) * 1.08 or 1.0


def _behind(chart: Chart, history: History) -> list[str]:
    """Returns the generations' lines and pauses, as every chart has them."""
    return _lines(chart, history) + [_pause(chart, one) for one in history.generations]


def _lines(chart: Chart, history: History) -> list[str]:
    if len(history.generations) > MOST_LINES:
        return []
    return [chart.upright(one.at, f"lead {_cause(one)}", title=_title(one)) for one in history.generations]
