"""The timeline: one page that needs nothing else, whatever the job has been through."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html import unescape
from xml.etree import ElementTree

import pytest

from elastic_launcher.report.history import relate
from elastic_launcher.report.metrics import measure
from elastic_launcher.report.svg import MAX_POINTS
from elastic_launcher.report.timeline import MOST_ROWS, render
from tests.support import histories

STORIES: dict[str, Callable[[], histories.Story]] = {
    "resized": histories.resized,
    "troubled": histories.troubled,
    "interrupted": histories.interrupted,
    "week": lambda: histories.week(days=2.0, resizes=30),
    "waiting": histories.waiting,
    "plain": histories.plain,
    "started": histories.Story,
    "never a number": lambda: histories.Story().start_nodes(1).form(1, cause="start").train(3, loss="nan"),
    "no quota": lambda: histories.Story().finish(76, "hints: allows 0 GPUs, and the job needs at least 1"),
    "adaptive": lambda: adaptive(),
    "flat": lambda: histories.Story().start_nodes(1).form(1, cause="start").train(3, loss=0.0),
}


def adaptive() -> histories.Story:
    """A job whose global batch grew and shrank."""
    story = histories.Story().start_nodes(1).form(1, cause="start").train(3, adaptive={"batch": 64, "lr_factor": 1.0})
    story.add("batch_changed", step=2, old=64, new=128, gain=1.4, reason="noise")
    story.train(3, adaptive={"batch": 128, "lr_factor": 1.4, "noise_scale": 5000.0, "efficiency": 0.7})
    story.add("batch_changed", step=5, old=128, new=96)
    return story.train(3, adaptive={"batch": 96, "lr_factor": 1.2, "noise_scale": 40.0, "efficiency": 0.8})


def page(story: histories.Story) -> str:
    return render(relate(story.events), measure(story.events))


def main(html: str) -> ElementTree.Element:
    """Returns the page's content, which is well-formed XML."""
    found = re.search(r"<main>.*</main>", html, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def words(html: str) -> str:
    return " ".join(" ".join(main(html).itertext()).split())


@pytest.mark.parametrize("name", STORIES)
def test_it_is_whole_and_needs_neither_network_nor_scripts(name: str) -> None:
    html = page(STORIES[name]())
    assert html.startswith("<!doctype html>") and html.endswith("</html>\n")
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|javascript:|\bon\w+=|https?://", html)
    numbers = [value for element in main(html).iter() for value in element.attrib.values()]
    assert not any(
        re.search(r"\b(nan|inf|None)\b", value) for value in numbers if "class" not in value and "%" in value
    )
    paths = [element.attrib["d"] for element in main(html).iter("path")]
    assert all("nan" not in path and "inf" not in path for path in paths)


def test_in_a_frame_it_begins_with_its_chart_and_is_white_on_any_system() -> None:
    story = histories.resized()
    framed = render(relate(story.events), measure(story.events), framed=True)
    assert main(framed)[0].get("id") == "size" and "prefers-color-scheme" not in framed
    assert 'name="color-scheme" content="light"' in framed
    assert words(framed).count("bert finished") == 1
    assert "prefers-color-scheme: dark" in page(story) and main(page(story))[0].tag == "h1"


@pytest.mark.parametrize("name", STORIES)
def test_ids_are_unique_and_every_chart_has_a_text(name: str) -> None:
    tree = main(page(STORIES[name]()))
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    plots = [element for element in tree.iter("svg") if element.get("role") == "img"]
    assert plots
    for plot in plots:
        assert all(name in ids for name in plot.attrib["aria-labelledby"].split())
        assert plot.findtext("title")


def test_it_tells_how_the_job_was_resized() -> None:
    text = words(page(histories.resized()))
    assert "bert finished" in text
    assert all(label in text for label in ("1 start", "2 hint · 31 ms", "3 notice · 12 ms"))
    assert "GPUs by the quota hint: guaranteed allowed limit" in text
    assert "node 1 was given notice (signal): it leaves at the next step" in text
    assert "0.9811" in text
    assert "from 3.2 s on 1 rank (start); from 17.3 s on 3 ranks (hint); from 31.6 s on 2 ranks (notice)" in text


def test_it_tells_what_went_wrong() -> None:
    html = page(histories.troubled())
    text = words(html)
    assert "failed, exit code 1" in text
    assert "rank 2 (member 3, node 3) was killed by SIGKILL" in text
    assert "17 events could not be written" in text
    assert "the loss was not a finite number in 10 reports" in text
    assert "```Killed```" in text
    assert 'class="nan"' in html
    assert text.count("× the loss was not a finite number at") == 2


def test_what_users_write_is_text() -> None:
    html = page(histories.troubled())
    assert "<b>&amp;amp;" not in html
    assert "llm &lt;b&gt;&amp;amp;|`x`" in html
    assert unescape(re.search(r"<title>(.*?)</title>", html)[1]) == "llm <b>&amp;|`x` – timeline"  # type: ignore[index]


def test_a_loss_over_many_powers_of_ten_is_logarithmic() -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start")
    for power in range(6):
        story.train(2, loss=10.0**-power)
    assert "logarithmic" in words(page(story))
    assert "logarithmic" not in words(page(histories.resized()))


def test_a_limit_far_above_the_job_does_not_flatten_it() -> None:
    story = histories.Story().hint(1, 2, 4000).start_nodes(1, 2).form(1, 2, cause="start").train(9)
    html = page(story)
    assert "(up to 4,000, above the chart)" in words(html)
    axis = main(html).find("figure[@id='size']/div/svg[@class='axis']")
    assert axis is not None
    assert max(int(text.text or 0) for text in axis.iter("text")) <= 8


def test_many_nodes_share_lines_and_long_tables_are_cut() -> None:
    story = histories.Story(nproc_per_node=1, max_nodes=2).start_nodes(1).form(1, cause="start")
    for node in range(2, 2 + MOST_ROWS + 50):
        story.start_nodes(node).train(2).form(1, node).train(2).add("node_left", node=node, cause="hint")
    html = page(story)
    text = words(html)
    assert "251 nodes; one that follows another may stand in its line" in text
    assert "rows left out" in text
    plot = main(html).find("figure[@id='nodes']/div/svg[@class='plot']")
    assert plot is not None
    assert int(plot.attrib["height"]) < 100


@pytest.mark.thorough
def test_a_job_of_a_million_steps_is_rendered_in_seconds() -> None:
    story = histories.Story(total_steps=1_000_000).start_nodes(1).form(1, cause="start")
    story.train(50_000, steps_a_second=20)
    began = time.monotonic()
    html = page(story)
    assert time.monotonic() - began < 30  # 1 s where nothing else runs
    assert story.step > 900_000
    assert len(html) < 300_000
    points = [len(re.findall(r"[\d.]+,[\d.]+", element.attrib["d"])) for element in main(html).iter("path")]
    assert 500 < max(points) <= MAX_POINTS


def test_losses_notices_checkpoints_and_waits_are_marked_and_say_what_they_are() -> None:
    html = page(histories.interrupted())
    for sign, said in (
        ("×", "node 2 was killed"),
        ("▼", "node 3 was given notice"),
        ("◆", r"step \d+ is saved in job/checkpoints"),
        ("‖", "waiting for quota, without any process"),
    ):
        assert re.search(rf">{sign}<title>at [^<]*{said}", html), said
    assert '<b class="bad">×</b> node lost' in html
    assert "Where the time went" in html and "waiting for quota</td>" in html


def test_many_checkpoints_are_thinned_and_losses_are_not() -> None:
    story = histories.Story().start_nodes(1).form(1, cause="start")
    for step in range(1000):
        story.later(1).add("checkpoint_saved", step=step, path="job", bytes=1, held_seconds=0.0, seconds=0.1)
    story.add("node_lost", node=1, member=1, message="node 1 was killed")
    html = page(story)
    assert 100 <= html.count(">◆<title>") <= 200
    assert ">×<title>" in html


def test_noise_efficiency_and_learning_rate_factor_of_an_adaptive_batch_have_charts() -> None:
    html, plain = page(adaptive()), page(histories.plain())
    for title in ("Noise scale", "Efficiency", "Learning-rate factor"):
        assert title in words(html) and title not in words(plain)
    assert "last 40, least 40, most 5,000" in html
    assert measure(adaptive().events).adaptive["efficiency"] == 0.8 and measure(histories.plain().events).adaptive == {}


def test_a_global_batch_that_changed_has_a_chart() -> None:
    html = page(adaptive())
    assert "Global batch" in words(html) and "Global batch" not in words(page(histories.plain()))
    sizes = [size for _, size in relate(adaptive().events).batches]
    assert sizes == [64, 128, 96]
    assert "the global batch is 128 samples from step 2 on, after 64 (gain 1.4): noise" in words(html)
