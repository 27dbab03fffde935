"""What a launcher tells Prometheus."""

from __future__ import annotations

import re
from dataclasses import replace

from elastic_launcher.host.prometheus import serving
from elastic_launcher.launcher.prometheus import JobCollector
from elastic_launcher.logged import Logged
from elastic_launcher.report.state import JobState, fold
from tests.support import histories
from tests.support.places import ROOT
from tests.support.scrapes import free_port, scraped


def scrape(state: JobState) -> dict[tuple[str, ...], float]:
    port = free_port()
    with serving(port, JobCollector(lambda: state)):
        return scraped(port)


def test_a_running_job_is_told_in_numbers() -> None:
    state = fold(histories.resized().events[:-8])
    found = scrape(state)
    assert found["step",] == state.step > 0
    assert found["world_size",] == state.world_size > 0
    assert found["remaining_seconds",] == state.seconds_left
    assert found["nodes", "training"] == sum(node.phase == "training" for node in state.nodes.values()) > 0
    assert found["hint_gpus", "allowed"] == state.quota["allowed"]
    assert {name[1]: value for name, value in found.items() if name[0] == "logged"} == state.logged


def test_what_is_not_known_and_what_is_no_number_is_left_out() -> None:
    found = scrape(JobState(loss="nan"))
    assert ("loss",) not in found and ("total_steps",) not in found
    assert found["step",] == 0


def test_what_prometheus_can_not_take_leaves_the_other_metrics_there() -> None:
    logged = {"f1 of \udcff.wav": 0.5, "product": 10**400, "accuracy": 0.75}
    found = scrape(JobState(step=7, log=Logged().add(7, 0, logged)[0]))
    assert found["step",] == 7
    shown = {name[1]: value for name, value in found.items() if name[0] == "logged"}
    assert shown == {r"f1 of \udcff.wav": 0.5, "accuracy": 0.75}


def test_the_page_of_events_names_each_metric() -> None:
    page = (ROOT / "docs/events.md").read_text(encoding="utf-8")
    adaptive = {"batch": 64, "lr_factor": 1.5, "noise_scale": 90.0, "efficiency": 0.8}
    served = {name[0] for name in scrape(replace(fold(histories.resized().events[:-8]), adaptive=adaptive))}
    assert {"remaining_seconds", "loss", "logged"} < served
    assert set(re.findall(r"`elastic_launcher_(\w+?)(?:\{\w+\})?`", page)) == served
