"""The timeline of a job: one self-contained HTML page that needs neither network nor scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from elastic_launcher.events import Event
from elastic_launcher.report.metrics import Metrics
from elastic_launcher.report.state import describe
from elastic_launcher.report.summary import remarks
from elastic_launcher.report.svg import Chart, Point

STYLE = """
:root{--ink:#1b2733;--soft:#5b6b7a;--grid:#e3e8ee;--paper:#fff;--card:#f6f8fa;--ranks:#2563eb;--area:#2563eb22;
--limit:#9aa7b5;--allowed:#16a34a;--guaranteed:#b45309;--loss:#be185d;--rate:#0f766e;--mark:#7c3aed}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa7b5;--grid:#2b3540;--paper:#11161c;--card:#1a2129;
--ranks:#6ea8fe;--area:#6ea8fe2e;--allowed:#4ade80;--guaranteed:#fbbf24;--loss:#f472b6;--rate:#5eead4;--mark:#c4b5fd}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;padding:16px;
max-width:1000px}
h1{font-size:21px;margin:0 0 2px}h2{font-size:16px;margin:22px 0 6px}p{margin:4px 0 12px;color:var(--soft)}
.cards{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}
.card{background:var(--card);border-radius:8px;padding:8px 12px;min-width:92px}
.card b{display:block;font-size:18px}.card span{color:var(--soft);font-size:12px}
svg{width:100%;height:auto;display:block;margin:6px 0 14px}.wide{overflow-x:auto}
.grid{stroke:var(--grid)}.tick{fill:var(--soft);font-size:11px}.title{fill:var(--ink);font-size:13px;font-weight:600}
polyline{fill:none;stroke-width:1.6}.ranks{stroke:var(--ranks);stroke-width:2.6}.fill{fill:var(--area)}
.limit{stroke:var(--limit);stroke-dasharray:2 4}.allowed{stroke:var(--allowed);stroke-dasharray:7 4}
.guaranteed{stroke:var(--guaranteed);stroke-dasharray:3 3}.loss{stroke:var(--loss)}.rate{stroke:var(--rate)}
.mark{stroke:var(--mark);stroke-width:1;stroke-dasharray:2 3}.label{fill:var(--mark);font-size:11px}
.bad{fill:var(--loss)}
.legend{font-size:12px;color:var(--soft)}
.legend i{display:inline-block;width:22px;border-top:3px solid;margin:0 6px 3px 14px}
table{border-collapse:collapse;width:100%;font-size:13px}
td,th{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--grid)}
th{color:var(--soft);font-weight:500}
"""


def render(events: Sequence[Event], metrics: Metrics) -> str:
    """Returns the page.

    Args:
        events: Of the job, in order.
        metrics: Its numbers.
    """
    started = next((event for event in events if event.kind == "job_started"), None)
    finished = next((event for event in events if event.kind == "job_finished"), None)
    zero = started.time if started is not None else (events[0].time if events else 0.0)
    seconds = max((events[-1].time - zero) if events else 0.0, 1e-3)
    name = str(started.get("name", "job")) if started is not None else "job"
    state = str(finished.get("message") or "finished") if finished is not None else "still running"
    body = [
        f"<h1>{escape(name)}</h1><p>{escape(state.splitlines()[0])}</p>",
        _cards(metrics),
        _sizes(events, zero, seconds),
        _curve(events, zero, seconds, "loss", "Loss (mean over the step's samples)", "loss"),
        _curve(events, zero, seconds, "samples_per_second", "Samples per second", "rate"),
        _generations(events, zero),
        _list("Remarks", remarks(events, metrics)),
        _happened(events, zero),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(name)}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{"".join(body)}</body></html>\n'
    )


def _cards(metrics: Metrics) -> str:
    cards = [
        (f"{metrics.steps:,}", "optimizer steps"),
        (f"{metrics.resizes_total}", "resizes"),
        (f"{metrics.goodput:.0%}", "goodput"),
        (f"{metrics.samples_per_second:,.0f}", "samples/s"),
        (f"{max(metrics.pauses, default=0.0) * 1000:,.0f} ms", "longest pause"),
        (f"{metrics.duration:,.1f} s", "duration"),
        *((f"{value:.4g}", key) for key, value in list(metrics.logged.items())[:4]),
    ]
    inner = "".join(f'<div class="card"><b>{escape(value)}</b><span>{escape(key)}</span></div>' for value, key in cards)
    return f'<div class="cards">{inner}</div>'


def _sizes(events: Sequence[Event], zero: float, seconds: float) -> str:
    """Draws the world size against the bands of the hints."""
    ranks = [(e.time - zero, float(e["world_size"])) for e in events if e.kind == "generation_formed"]
    bands: dict[str, list[Point]] = {"limit": [], "allowed": [], "guaranteed": []}
    for event in events:
        if event.kind == "hint_applied":
            for key, points in bands.items():
                if event.get(key) is not None:
                    points.append((event.time - zero, float(event[key])))
    highest = max([value for points in (ranks, *bands.values()) for _, value in points], default=1.0)
    shown = min(highest, 4 * max([value for _, value in ranks], default=highest))
    chart = Chart("World size (ranks)", 250, seconds, 0.0, shown + 0.6)
    parts = [chart.area(ranks, "fill")]
    for key, points in bands.items():
        parts.append(chart.steps([(t, min(value, shown + 0.5)) for t, value in points], key))
    parts.append(chart.steps(ranks, "ranks"))
    last_label = -1e9
    for event in events:
        if event.kind == "generation_formed":
            x, y = chart.x(event.time - zero), chart.y(float(event["world_size"]))
            parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{y}" y2="{chart.y(0)}"/>')
            if x - last_label > 46:
                parts.append(f'<text class="label" x="{x + 3}" y="{y - 5}">{escape(str(event["cause"]))}</text>')
                last_label = x
    names = [("ranks", "ranks"), *((key, key) for key, points in bands.items() if points)]
    legend = "".join(f'<i style="border-color:var(--{key})"></i>{label}' for key, label in names)
    return f'<h2>Size</h2>{chart.frame("".join(parts), whole=True)}<div class="legend">{legend}</div>'


def _curve(events: Sequence[Event], zero: float, seconds: float, key: str, title: str, kind: str) -> str:
    progress = [event for event in events if event.kind == "progress" and event.get(key) is not None]
    points = [(e.time - zero, float(e[key])) for e in progress if not isinstance(e[key], str)]
    broken = [e.time - zero for e in progress if isinstance(e[key], str)]
    if not points and not broken:
        return ""
    low = min([value for _, value in points], default=0.0)
    high = max([value for _, value in points], default=1.0)
    margin = (high - low or abs(high) or 1.0) * 0.08
    chart = Chart(title, 190, seconds, min(low, 0.0) if kind == "rate" else low - margin, high + margin)
    marks = [
        f'<text class="bad" x="{chart.x(t)}" y="{chart.y(high)}">×<title>not finite</title></text>'
        for t in broken[:200]
    ]
    return chart.frame(chart.line(points, kind) + "".join(marks))


def _generations(events: Sequence[Event], zero: float) -> str:
    rows = []
    for event in events:
        if event.kind == "generation_formed":
            nodes = ", ".join(str(n) for n in dict.fromkeys(member["node"] for member in event["members"]))
            cells = [
                event.generation,
                f"{event.time - zero:.1f} s",
                event["world_size"],
                nodes,
                event["first_step"],
                event["cause"],
                f"{event['pause_seconds'] * 1000:.0f} ms",
            ]
            rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("", "at", "ranks", "nodes", "first step", "cause", "pause"))
    return f'<h2>Generations</h2><div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>' if rows else ""


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:50])
    more = f"<li>and {len(lines) - 50} more</li>" if len(lines) > 50 else ""
    return f"<h2>{title}</h2><ul>{shown}{more}</ul>"


def _happened(events: Sequence[Event], zero: float) -> str:
    """Lists what happened, in words."""
    told = [(event.time - zero, line) for event in events if (line := describe(event)) is not None]
    rows = "".join(f"<tr><td>{t:.1f} s</td><td>{escape(line.splitlines()[0])}</td></tr>" for t, line in told[:400])
    return f'<h2>What happened</h2><div class="wide"><table>{rows}</table></div>' if rows else ""
