"""What is written from the option table: it is up to date, and a new row reaches each front."""

from __future__ import annotations

import pytest

from components.from_options import PLACES, Place
from elastic_launcher.options import OPTIONS, Option
from tests.support.places import ROOT

NEW = (
    Option("probe_timeout", "seconds", "SECONDS", "7", "How long probes take."),
    Option("probe_count", "whole", "N", None, "How many probes.", component="elastic_train"),
    Option("probe_name", "text", "NAME", "a", "What probes are called.", component="elastic_train_distributed"),
    Option("probe", "switch", "", None, "Whether there are probes."),
)
LINES = {
    "elastic_launcher/config.py": [
        "    orphan_timeout: float = 60.0",
        "    probe_timeout: float = 7.0",
        "    probe_count: int | None = None",
        '    probe_name: str = "a"',
        "    probe: bool = False",
        "    heartbeat_timeout: float = 10.0",
    ],
    "elastic_launcher/hera.py": [
        "    orphan_timeout: float | str | None = None",
        "    probe_timeout: float | str | None = None",
        "    probe_count: int | str | None = None",
        "    probe_name: str | None = None",
        "    probe: bool | None = None",
        "    heartbeat_timeout: float | str | None = None",
    ],
    "def elastic_train(": [
        "    orphan_timeout: float = 60,",
        "    probe_timeout: float = 7,",
        "    probe_count: int = 0,",
        "    probe: bool = False,",
        "    heartbeat_timeout: float = 10,",
    ],
    "def elastic_train_distributed(": [
        "    orphan_timeout: float = 60,",
        "    probe_timeout: float = 7,",
        '    probe_name: str = "a",',
        "    probe: bool = False,",
        "    heartbeat_timeout: float = 10,",
    ],
}
each = pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.file}, {place.anchor}")


@each
def test_what_follows_from_the_table_is_as_the_table_has_it(place: Place) -> None:
    text = (ROOT / place.file).read_text()
    assert place.written(text) == text, "`make golden` writes it again"


@each
def test_lines_that_were_changed_by_hand_are_written_as_the_table_has_them_except_for_prose(place: Place) -> None:
    text = (ROOT / place.file).read_text()
    old, new = (
        ("Seconds that nodes go on", "Seconds nodes go on")
        if place.keeps
        else ("grace_period: float", "grace_period: str")
    )
    changed = text.replace(old, new)
    assert changed != text
    assert place.written(changed) == (changed if place.keeps else text)


@pytest.mark.parametrize("where", LINES)
def test_a_new_option_gets_its_line_after_the_option_before_it(where: str) -> None:
    place = next(one for one in PLACES if where in (one.file, one.anchor))
    assert block(place, LINES[where][0]) == LINES[where]


def test_a_components_docstring_has_a_new_options_help() -> None:
    pod, nodes = (place for place in PLACES if place.keeps)
    first = "        orphan_timeout: Seconds that nodes go on when the launcher can't be reached."
    assert block(pod, first)[1:-1] == [
        "        probe_timeout: How long probes take.",
        "        probe_count: How many probes.",
        "        probe: Whether there are probes.",
    ]
    assert block(nodes, first)[2] == "        probe_name: What probes are called."


def block(place: Place, first: str) -> list[str]:
    """Returns the lines from one on, once there are new options, up to the first that was there before."""
    at = next(at for at, option in enumerate(OPTIONS) if option.key == "orphan_timeout") + 1
    text = (ROOT / place.file).read_text()
    lines = place.written(text, (*OPTIONS[:at], *NEW, *OPTIONS[at:])).splitlines()
    begin, known = lines.index(first), set(text.splitlines())
    end = next(at for at in range(begin + 1, len(lines)) if lines[at] in known)
    return lines[begin : end + 1]
