"""The summary in Markdown."""

from __future__ import annotations

from elastic_launcher.report.history import relate
from elastic_launcher.report.metrics import measure
from elastic_launcher.report.summary import MOST_REMARKS, summarize
from tests.support import histories


def summary(story: histories.Story) -> str:
    return summarize(relate(story.events), measure(story.events))


def test_a_job_that_was_resized() -> None:
    lines = summary(histories.resized()).splitlines()
    assert lines[0] == "# bert"
    assert lines[2] == "**finished**: done: 348 steps, 89088 samples"
    assert "- pauses: 43 ms in all, the longest 31 ms" in lines
    assert "- test\\_accuracy: 0.9811" in lines
    third = "2 ranks on nodes 2, 3, from step 221, after a pause of 12 ms; 2,048 samples/s"
    assert f"- generation 3 (notice) at 31.6 s: {third}" in lines


def test_what_went_wrong_is_quoted_and_never_taken_for_markup() -> None:
    text = summary(histories.troubled())
    assert text.startswith("# llm \\<b>&amp;\\|\\`x\\`\n")
    assert "**failed** (exit code 1): rank 2" in text
    assert "\n````text\nLast lines of logs/3-0.log:\n  File <train.py>\n  ```Killed```\n````\n" in text
    assert "- the loss was not a finite number in 10 reports" in text
    assert "17 events could not be written" in text


def test_no_words_stand_in_columns_which_a_viewer_may_set_without_a_gap() -> None:
    for story in (histories.resized(), histories.troubled(), histories.week(0.5, 5)):
        assert not [line for line in summary(story).splitlines() if line.startswith("|")]


def test_a_job_that_never_trained() -> None:
    assert "none: training did not begin" in summary(histories.waiting())
    assert "**starting**, 2.0 s after its start" in summary(histories.waiting())


def test_many_remarks_are_cut() -> None:
    story = histories.Story()
    for number in range(MOST_REMARKS + 7):
        story.later(1).add("warning", message=f"warning {number}")
    assert "and 7 more, in the timeline" in summary(story)
