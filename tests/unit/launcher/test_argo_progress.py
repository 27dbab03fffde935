"""The progress that Argo reads: N/M or nothing, whatever happens."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import Event
from elastic_launcher.launcher.argo_progress import VARIABLE, ArgoProgress, argo_progress, progress
from elastic_launcher.launcher.job_output import JobOutput
from elastic_launcher.report.state import JobState, advance
from tests.support import histories

LINE = re.compile(r"(\d+)/(\d+)\n")


@given(st.none() | st.integers(-5, 10**7), st.integers(-5, 10**7))
def test_it_is_well_formed_or_not_there(total: int | None, step: int) -> None:
    told = progress(replace(JobState(), total_steps=total, step=step))
    if total is None or total <= 0:
        assert told == ""
    else:
        done, whole = map(int, told.split("/"))
        assert 0 <= done <= whole == total


@pytest.mark.parametrize(
    "story",
    [histories.resized(), histories.troubled(), histories.interrupted(), histories.waiting(), histories.plain()],
)
def test_after_each_event_of_a_job_the_file_holds_one_whole_line(story: histories.Story, tmp_path: Path) -> None:
    path, state = tmp_path / "progress", JobState()
    told = ArgoProgress(path)
    for event in story.events:
        state = advance(state, event)
        told.take(state)
        if state.total_steps:
            assert LINE.fullmatch(path.read_text())
        assert set(os.listdir(tmp_path)) <= {"progress"}, "nobody reads a half-written one"
    assert not path.exists() or path.read_text() == f"{progress(state)}\n"


def test_a_reader_never_sees_the_file_that_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    told = ArgoProgress(path)
    told.take(JobState(step=1, total_steps=10))
    with open(path) as reader:
        told.take(JobState(step=2, total_steps=10))
        assert reader.read() == "1/10\n"
    assert path.read_text() == "2/10\n"


def test_only_argo_is_told() -> None:
    state = JobState(step=1, total_steps=10)
    argo_progress({}).take(state)
    with pytest.raises(OSError):
        argo_progress({VARIABLE: "/nowhere/progress"}).take(state)


class Display:
    """Stands for what shows the job."""

    def __init__(self) -> None:
        self.state = JobState(step=3, total_steps=12)

    def feed(self, event: Event) -> None:
        pass

    def script_line(self, rank: int | None, text: str) -> None:
        pass


def test_the_launcher_writes_it_and_says_once_where_it_can_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display: Any = Display()
    event = Event("progress", 0.0, 1)
    JobOutput(display, tmp_path, 1, progress=ArgoProgress(tmp_path / "progress")).take(event)
    assert (tmp_path / "progress").read_text() == "3/12\n"
    output = JobOutput(display, tmp_path, 1, progress=ArgoProgress(tmp_path / "none" / "progress"))
    for _ in range(3):
        output.take(event)
    assert capsys.readouterr().err.count("the progress can't be written for Argo") == 1
