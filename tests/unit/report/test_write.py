"""The report's files: written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launcher.events import EventError
from elastic_launcher.report import measure, write_report, write_timeline
from elastic_launcher.report.write import write_atomically
from tests.support import histories


def test_three_files_are_written_and_no_other(tmp_path: Path) -> None:
    story = histories.resized()
    work_dir = histories.write(story.events, tmp_path / "job")
    metrics = write_report(work_dir)
    assert sorted(os.listdir(work_dir)) == ["events.jsonl", "metrics.json", "report.html", "report.md"]
    assert metrics == measure(story.events)
    assert json.loads((work_dir / "metrics.json").read_text()) == json.loads(json.dumps(metrics.to_dict()))
    assert {os.stat(work_dir / name).st_mode & 0o777 for name in ("metrics.json", "report.html")} == {0o644}


def test_values_that_json_lacks_do_not_break_the_metrics(tmp_path: Path) -> None:
    work_dir = histories.write(histories.troubled().events, tmp_path / "job")
    write_report(work_dir)
    text = (work_dir / "metrics.json").read_text()
    metrics = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert metrics["logged"] == {"accuracy": "nan", "perplexity": 12.25}


def test_a_timeline_elsewhere_leaves_the_work_directory_alone(tmp_path: Path) -> None:
    work_dir = histories.write(histories.resized().events, tmp_path / "job")
    write_timeline(work_dir, tmp_path / "x.html")
    assert os.listdir(work_dir) == ["events.jsonl"]
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")


def test_what_can_not_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from elastic_launcher.report.write import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
write_atomically(Path(sys.argv[1]), "x" * 200)
"""
    path = tmp_path / "report.md"
    path.write_text("before")
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "File too large" in result.stderr
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["report.md"]


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        write_atomically(pipe, "hello")
        assert reader.communicate()[0] == b"hello"
    assert pipe.is_fifo()


def test_text_that_is_no_unicode_is_written_too(tmp_path: Path) -> None:
    write_atomically(tmp_path / "report.md", "a\udcffb")
    assert (tmp_path / "report.md").read_text() == "a?b"


def test_events_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("Dear diary\n")
    with pytest.raises(EventError):
        write_report(tmp_path)
