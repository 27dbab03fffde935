from __future__ import annotations

from pathlib import Path

import pytest

from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.runtime.failure_excerpt import last_exception, last_lines, read_exit, with_last_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"exit_code": 3, "signal": null}', Exit(3, None)),
        ('{"exit_code": null, "signal": 9}', Exit(None, 9)),
        ('{"exit_code": 3', None),
        ("[]", None),
        (None, None),
    ],
)
def test_how_a_rank_ended_is_read_from_its_file(tmp_path: Path, text: str | None, expected: Exit | None) -> None:
    if text is not None:
        (tmp_path / "1-0.exit").write_text(text)
    assert read_exit(tmp_path / "1-0.exit", 4) == expected


def test_the_last_lines_are_few_and_without_marks(tmp_path: Path) -> None:
    path = tmp_path / "1-0.log"
    path.write_text("".join(f"line {n}\n::elastic generation={n} rank=0 world_size=1::\n" for n in range(100)))
    assert last_lines(path, 3) == ["line 97", "line 98", "line 99"]


def test_of_a_large_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1-0.log"
    path.write_text("x" * 1_000_000 + "\nlast\n")
    assert last_lines(path)[-1] == "last"
    assert sum(map(len, last_lines(path))) < 70_000


def test_a_progress_bar_is_shown_as_a_terminal_would(tmp_path: Path) -> None:
    path = tmp_path / "1-0.log"
    path.write_bytes(b"10%\r50%\r100%\nbye\xff\r\n")
    assert last_lines(path) == ["100%", "bye\ufffd"]


def test_a_message_stands_alone_where_there_is_no_log(tmp_path: Path) -> None:
    assert with_last_lines("it failed", tmp_path / "1-0.log") == "it failed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello\n", ""),
        (
            "Traceback (most recent call last):\n  File 'a.py', line 1\n    f()\nValueError: boom\nbye\n",
            "ValueError: boom",
        ),
        (
            "Traceback (most recent call last):\n  f()\nKeyError: 1\n\nDuring handling of the above exception:\n\n"
            "Traceback (most recent call last):\n  g()\nmodels.TooLarge: 3\n",
            "models.TooLarge: 3",
        ),
        ("Traceback (most recent call last):\n  File 'a.py', line 1\n", ""),
    ],
)
def test_the_last_exception_is_the_one_of_the_last_traceback(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "1-0.log"
    path.write_text(text)
    assert last_exception(path) == expected


def test_why_the_job_ended_is_not_among_the_last_words_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / "1-0.log"
    path.write_text("bye\nelastic-launcher: the job failed: rank 1 failed; this rank leaves\n")
    assert last_lines(path) == ["bye"]


def test_a_traceback_that_the_log_shows_is_not_shown_twice(tmp_path: Path) -> None:
    path = tmp_path / "1-0.log"
    path.write_text("Traceback (most recent call last):\nValueError: boom\n")
    message = with_last_lines("it failed", path, "Traceback (most recent call last):\nValueError: boom\n")
    assert message.splitlines() == [
        "it failed",
        f"Last lines of {path}:",
        "  Traceback (most recent call last):",
        "  ValueError: boom",
    ]
    assert with_last_lines("it failed", path, "KeyError: 'x'\n").endswith("boom\n  KeyError: 'x'")
