"""What ``run`` shows: plain lines where there is no terminal, live ones where there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from elastic_launcher.config import JobConfig
from elastic_launcher.events import Event
from elastic_launcher.launcher.display import Display, panel
from elastic_launcher.report.state import fold
from tests.support import histories
from tests.support.terminals import ANSI, in_terminal, screen

CONFIG = JobConfig(script="train.py", name="bert")


class Clock:
    """Goes on only where it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def display(clock: Clock) -> Iterator[Display]:
    display = Display(CONFIG, clock=clock)
    display.start()
    yield display
    display.stop()


def test_each_change_is_a_plain_line_of_ours(display: Display, capsys: pytest.CaptureFixture[str]) -> None:
    for event in histories.resized().events:
        if event.kind != "progress":
            display.feed(event)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert all(line.startswith("elastic-launcher: ") for line in lines)
    said = [line.removeprefix("elastic-launcher: ") for line in lines]
    assert said[0].startswith("job bert started")
    assert "node 1 was given notice (signal): it leaves at the next step" in said
    assert said[-1] == "generation 3: 2 ranks on nodes 2, 3 from step 221 because a node was given notice; pause 12 ms"


def test_a_node_that_fails_in_a_cluster_is_told_with_its_pod(
    display: Display, capsys: pytest.CaptureFixture[str]
) -> None:
    display.feed(Event("node_started", 0.0, 0, {"node": 2, "members": [2]}))
    display.feed(Event("node_placed", 1.0, 0, {"node": 2, "pod": "bert-x-2-abcde", "machine": "m-1"}))
    display.feed(Event("node_lost", 2.0, 1, {"node": 2, "message": "node 2 was killed by SIGKILL"}))
    display.feed(Event("node_lost", 2.0, 1, {"node": 3, "message": "node 3 was killed by SIGKILL"}))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "elastic-launcher: node 2 runs in pod bert-x-2-abcde on machine m-1",
        "elastic-launcher: node 2 was killed by SIGKILL (pod bert-x-2-abcde)",
        "elastic-launcher: node 3 was killed by SIGKILL",
    ]


def test_where_the_training_stands_is_told_with_each_change_and_every_thirty_seconds(
    display: Display, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    story = (
        histories.Story().hint(1, 1, 3).start_nodes(1).warm(1).form(1, cause="start").train(10).hint(1, 2, 3).train(65)
    )
    told = []
    for event in story.events:
        clock.now = event.time - histories.START
        display.feed(event)
        told += [round(clock.now) for line in capsys.readouterr().err.splitlines() if ": progress " in line]
    assert told == [1, 10, 40, 70]


def test_where_the_training_stands_is_told_while_nothing_happens(
    display: Display, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for event in histories.Story().start_nodes(1).warm(1).form(1, cause="start").train(2).events:
        display.feed(event)
    capsys.readouterr()
    for clock.now in (29.9, 30.0, 59.9, 60.0):
        display.tell_progress()
    (first, second) = capsys.readouterr().err.splitlines()
    assert first == second and first.startswith("elastic-launcher: progress percent=")


def test_a_scripts_lines_go_to_standard_output(display: Display, capsys: pytest.CaptureFixture[str]) -> None:
    display.script_line(0, "loss [bold]0.5[/bold]")
    display.script_line(None, "[node 2] no rank yet")
    display.script_line(1, " 10%|#   \r 50%|##  \r100%|####\r")
    shown = capsys.readouterr()
    assert shown.out == "[rank 0] loss [bold]0.5[/bold]\n[node 2] no rank yet\n[rank 1] 100%|####\n"
    assert shown.err == ""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_characters_that_the_other_side_can_not_take_end_nothing(encoding: str) -> None:
    code = """
from elastic_launcher.launcher.display import Display
from elastic_launcher.config import JobConfig
from elastic_launcher.events import Event
display = Display(JobConfig(script="train.py"))
display.start()
display.script_line(0, "Größe \\ufffd")
display.feed(Event("warning", 0.0, 1, {"message": "Größe"}))
display.stop()
"""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    wanted = {"utf-8": "[rank 0] Größe \ufffd\n", "ascii": "[rank 0] Gr\\xf6\\xdfe \\ufffd\n"}
    assert result.stdout == wanted[encoding]


def rendered(story: histories.Story, width: int) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(panel(fold(story.events), "bert", width))
    return ANSI.sub("", capture.get()).splitlines()


def test_live_lines_tell_what_the_issue_asks_for() -> None:
    _, first, second, *_ = rendered(histories.week(0.05, 4), 110)
    assert re.fullmatch(
        r"bert +━*╸?━+ +epoch 1/100, step [\d,]+/1,000,000 \(0\.\d%\) +\d+ d \d+ h left", first.rstrip()
    )
    assert re.fullmatch(
        r"\d+ ranks · guaranteed 16, allowed \d+, limit 64 · loss [\d.]+ · [\d.]+ samples/s · 4 resizes", second
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "story", [histories.waiting, histories.resized, histories.troubled, histories.plain, histories.Story]
)
def test_live_lines_fit_the_terminal(story: Callable[[], histories.Story], width: int) -> None:
    lines = rendered(story(), width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= (9 if width < 60 else 5)


def test_nodes_on_their_way_are_told() -> None:
    assert "waiting to train: node 1 starting, node 2 ready" in rendered(histories.waiting(), 80)[1]
    assert "waiting to train: no nodes yet" in rendered(histories.Story(), 80)[1]


def test_on_a_terminal_lines_stand_above_the_live_ones_which_vanish_at_the_end() -> None:
    code = """
from elastic_launcher.launcher.display import Display
from elastic_launcher.config import JobConfig
from tests.support import histories
display = Display(JobConfig(script="train.py", name="bert"))
display.start()
for event in histories.resized().events:
    display.feed(event)
    if event.kind == "generation_formed":
        display.script_line(0, f"hello from {event.generation} [bold]")
display.stop()
"""
    written = in_terminal(code, columns=120)
    lines = screen(written)
    assert [line for line in lines if "hello" in line] == [f"[rank 0] hello from {n} [bold]" for n in (1, 2, 3)]
    assert lines[-2].startswith("elastic-launcher: generation 3") and lines[-1].startswith("[rank 0] hello from 3")
    assert "━" in written
    assert not any("━" in line for line in lines)


SHOW_A_JOB = """
from elastic_launcher.launcher.display import Display
from elastic_launcher.config import JobConfig
from tests.support import histories
display = Display(JobConfig(script="train.py", name="bert"))
display.start()
for event in histories.resized().events:
    display.feed(event)
display.tell_progress()
display.stop()
"""


def test_a_terminal_has_the_live_lines_and_no_others_of_progress() -> None:
    assert "progress " not in in_terminal(SHOW_A_JOB, columns=120)


def test_a_terminal_that_can_not_step_upwards_has_plain_lines() -> None:
    written = in_terminal(SHOW_A_JOB, columns=120, term="dumb")
    assert written.count("elastic-launcher: progress ") == 4
    assert "\x1b" not in written


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_log_has_plain_lines_also_where_colours_are_forced(name: str) -> None:
    environment = {**os.environ, name: "1", "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, "-c", SHOW_A_JOB], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("elastic-launcher: progress ") == 4
    assert "\x1b" not in result.stderr
