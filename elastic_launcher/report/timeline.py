"""The timeline of a job: one self-contained HTML page, which needs neither network nor scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from elastic_launcher.report.charts import adaptive_charts, batch_chart, loss_chart, node_chart, size_chart, speed_chart
from elastic_launcher.report.describe import shape
from elastic_launcher.report.history import Generation, History, Note
from elastic_launcher.report.metrics import Metrics
from elastic_launcher.report.summary import checkpoints
from elastic_launcher.report.words import NONE, clock, compact, duration, listing, moment, number, plural, rate, share

MOST_ROWS = 200
"""Rows of a table; of a longer one the first and the last are shown."""
MOST_LOGGED = 6
"""Values of ``job.log`` that are shown among the key numbers."""


def render(history: History, metrics: Metrics, *, framed: bool = False) -> str:
    """Returns the page.

    Args:
        history: The job's past.
        metrics: Its numbers.
        framed: Whether it is seen in a small frame of a white page, as in Kubeflow: it begins with its chart, and is
            white on every system.
    """
    name = escape(history.name)
    top = [_head(history), _cards(history, metrics)]
    chart = size_chart(history)
    body = (
        *([chart, *top] if framed else [*top, chart]),
        node_chart(history),
        loss_chart(history),
        speed_chart(history),
        batch_chart(history),
        adaptive_charts(history),
        _spent(metrics),
        _generations(history),
        _notable(history),
        _happened(history),
        _asked(history),
    )
    return page(f"{name} – timeline", body, framed=framed)


def page(title: str, parts: Iterable[str], *, framed: bool = False) -> str:
    """Returns a page in the style of the timeline, of a title and parts as HTML; empty parts are left out."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="{"light" if framed else "light dark"}"><title>{title}</title>'
        f"<style>{_style(framed)}</style>"
    )
    main = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body><main>\n{main}\n</main></body>\n</html>\n'


@cache
def _style(framed: bool) -> str:
    """Returns the style sheets, without what only their reader needs."""
    sheets = ("timeline.css", "timeline-framed.css" if framed else "timeline-dark.css")
    text = "".join(files(__package__).joinpath(sheet).read_text(encoding="utf-8") for sheet in sheets)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"/\*.*?\*/", "", text)).strip()


def _head(history: History) -> str:
    started = f"started {clock(history.started_at)}" if history.started_at else "not started yet"
    if history.finished is None:
        badge = f'<span class="badge {history.outcome}">{history.outcome}</span>'
        when = f"{started}; as of {duration(history.seconds)} later"
        message = ""
    else:
        code = history.finished.get("exit_code")
        state = history.outcome
        named = f"{state}, exit code {code}" if code else state
        badge = f'<span class="badge {state}">{escape(named)}</span>'
        when = f"{started}, took {duration(history.seconds)}"
        message = str(history.finished.get("message") or "").strip()
    first, _, rest = message.partition("\n")
    parts = [f"<h1>{escape(history.name)} {badge}</h1>", f'<p class="soft">{escape(when)}</p>']
    if first:
        parts.append(f"<p>{escape(first)}</p>")
    if rest.strip():
        parts.append(f"<pre>{escape(rest.rstrip())}</pre>")
    return "".join(parts)


def _cards(history: History, metrics: Metrics) -> str:
    broken = metrics.loss is None and metrics.loss_not_finite
    cards = [
        ("optimizer steps", compact(metrics.steps)),
        ("samples", compact(metrics.samples)),
        ("samples per second", rate(metrics.samples_per_second)),
        ("goodput", share(metrics.goodput)),
        ("ranks at the end" if history.finished is not None else "ranks now", f"{metrics.world_size_final:,}"),
        ("resizes", f"{metrics.resizes_total:,}"),
        ("longest pause", duration(max(metrics.pauses_seconds)) if metrics.pauses_seconds else NONE),
        ("checkpoints", f"{metrics.checkpoints:,}"),
        ("nodes lost", f"{metrics.nodes_lost:,}"),
        ("steps done again", f"{metrics.steps_redone:,}"),
        ("duration", duration(metrics.duration_seconds)),
        ("last loss", "not finite" if broken else number(metrics.loss)),
        *((name, number(value)) for name, value in list(metrics.logged.items())[:MOST_LOGGED]),
    ]
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards)
    return f'<dl class="cards">{shown}</dl>'


def _spent(metrics: Metrics) -> str:
    spent = metrics.spent_seconds
    whole = sum(spent.values())
    if not whole:
        return ""
    rows = [("", [escape(name), duration(seconds), share(seconds / whole)]) for name, seconds in spent.items()]
    title = "Where the time went"
    text = f'<p class="soft">Checkpoints: {escape(checkpoints(metrics))}.</p>'
    return f"<h2>{title}</h2>{table(title, ('in', 'time', 'share'), rows, numeric={1, 2})}{text}"


def _generations(history: History) -> str:
    if not history.generations:
        return ""
    heads = ("", "from", "cause", "ranks", "on nodes", "members, in rank order", "first step", "pause", "samples/s")
    rows = [_generation(one) for one in history.generations]
    text = '<p class="soft">Each change of the membership, and how long training stood still for it.</p>'
    return f"<h2>Generations</h2>{text}{table('Generations', heads, rows, numeric={0, 1, 3, 6, 7, 8})}"


def _generation(one: Generation) -> tuple[str, list[str]]:
    cells = [
        str(one.number),
        moment(one.at),
        f"<b>{escape(one.cause or NONE)}</b>",
        f"{one.world_size:,}",
        escape(listing(one.nodes)),
        escape(listing(one.members)),
        f"{one.first_step:,}",
        duration(one.pause_seconds) if one.number > 1 else NONE,
        NONE if one.samples_per_second is None else rate(one.samples_per_second),
    ]
    return escape(one.cause), cells


def _notable(history: History) -> str:
    notes = history.notable
    if not notes and not any(value != value for _, value in history.loss):
        return ""
    rows = [_note(note) for note in notes]
    broken = [at for at, value in history.loss if value != value]
    if broken:
        text = f"<b>the loss was not a finite number</b> in {plural(len(broken), 'report')}, first here"
        rows.append(("warning", [moment(broken[0]), text]))
    title = "Notices, warnings, failures"
    return f"<h2>{title}</h2>{table(title, ('at', 'what'), rows, numeric={0})}"


def _note(note: Note) -> tuple[str, list[str]]:
    return escape(note.kind), [moment(note.at), escape(note.text)]


def _happened(history: History) -> str:
    if not history.notes:
        return ""
    rows = table("All that happened", ("at", "what"), [_note(note) for note in history.notes], numeric={0})
    return f"<details><summary>All that happened ({plural(len(history.notes), 'event')})</summary>{rows}</details>"


def _asked(history: History) -> str:
    started = history.started
    if not started:
        return ""
    facts = [
        ("job", started.get("job_id")),
        ("command", shlex.join(map(str, started.get("command") or ()))),
        ("asked for", shape(started)),
        ("hints", started.get("hints")),
        ("launcher", f"process {started.get('pid')} on {started.get('host')}, version {started.get('version')}"),
    ]
    rows = [("", [escape(name), escape(str(value))]) for name, value in facts if value]
    title = "What was asked for"
    return f"<details><summary>{title}</summary>{table(title, ('', ''), rows, numeric=())}</details>"


def table(
    title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, numeric: Iterable[int]
) -> str:
    """Returns a table of heads and rows (a CSS class and cells) as HTML; its title is for whoever can't see it.

    There is no head where all heads are empty; ``numeric`` are the columns with numbers.
    """
    right = set(numeric)
    kinds = [' class="number"' if column in right else "" for column in range(len(heads))]
    kinds[-1] = kinds[-1] or ' class="text"'
    shown = list(rows)
    if len(rows) > MOST_ROWS:
        left_out = f"… {plural(len(rows) - MOST_ROWS, 'row')} left out …"
        gap = ("", [""] * (len(heads) - 1) + [f'<span class="soft">{left_out}</span>'])
        shown = [*rows[: MOST_ROWS // 4], gap, *rows[len(rows) - 3 * MOST_ROWS // 4 :]]
    top = "".join(f'<th scope="col"{kind}>{escape(head)}</th>' for head, kind in zip(heads, kinds, strict=True))
    lines = "".join(
        f'<tr class="{kind}">' + "".join(f"<td{k}>{cell}</td>" for cell, k in zip(cells, kinds, strict=True)) + "</tr>"
        for kind, cells in shown
    )
    header = f"<thead><tr>{top}</tr></thead>" if any(heads) else ""
    return f'<div class="wrap"><table aria-label="{escape(title)}">{header}<tbody>{lines}</tbody></table></div>'
