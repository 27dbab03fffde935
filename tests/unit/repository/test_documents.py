"""What the documents refer to is there: other documents, tests, options of the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_launcher.options import OPTIONS
from tests.support.places import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("components/**/*.md")])


def anchor(heading: str) -> str:
    """Returns what a link to a heading ends with."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(document: Path) -> set[str]:
    """Returns what links into a document may end with."""
    text = document.read_text()
    headings = {anchor(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}
    return headings | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, place = target.partition("#")
        found = (document.parent / path) if path else document
        assert found.exists(), f"{target} is not there"
        assert not place or place in anchors(found), f"there is no heading {target}"


def test_the_tests_of_the_faults_are_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs/faults.md").read_text())
    assert named
    for file, test in named:
        texts = [path.read_text() for path in ROOT.glob(f"tests/**/{file}")]
        assert any(re.search(rf"^def {test}\(", text, re.MULTILINE) for text in texts), f"{file} has no {test}"


def test_the_faults_say_which_tests_are_not_played_for_real() -> None:
    for file, test, kind in re.findall(
        r"`(test_\w+\.py)::(test_\w+)`(?: \((\w+)\))?", (ROOT / "docs/faults.md").read_text()
    ):
        paths = [path for path in ROOT.glob(f"tests/**/{file}") if f"def {test}(" in path.read_text()]
        assert {path.relative_to(ROOT).parts[1] for path in paths} == {kind or "local"}, f"{file}::{test}"


def test_each_event_of_the_faults_says_what_happens_and_names_a_test() -> None:
    events = re.split(r"^### ", (ROOT / "docs/faults.md").read_text(), flags=re.MULTILINE)[1:]
    assert events
    for event in events:
        fields = re.findall(r"\*\*(Effect|Lost|Test)\*\*: ", event)
        assert fields == ["Effect", "Lost", "Test"], event
        assert "::test_" in event.partition("**Test**: ")[2], event


def test_options_that_the_faults_speak_of_exist() -> None:
    spoken = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs/faults.md").read_text()))
    assert spoken
    assert spoken <= {option.flag for option in OPTIONS}
