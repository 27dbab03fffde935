"""What the controller tells Prometheus, while it leads and while another one does."""

from __future__ import annotations

import re

from elastic_launcher.host.prometheus import PREFIX, serving
from elastic_launcher.quota.controller import Made
from elastic_launcher.quota.metrics.exposition import KINDS, QuotaMetrics
from elastic_launcher.quota.projects import Project, Projects
from tests.support.places import ROOT
from tests.support.quota_world import Cluster
from tests.support.scrapes import free_port, scraped


class Controller:
    """A controller of a small cluster, with a clock of its own."""

    def __init__(self) -> None:
        projects = (Project("nlp", guaranteed=2), Project("vision", guaranteed=4))
        self.cluster = Cluster(Projects(projects, grow_after=0.0), 8)
        self.leads = True
        self.metrics = QuotaMetrics(lambda: self.leads, lambda: self.cluster.now)

    def round(self) -> None:
        decision = self.cluster.round()
        self.metrics.take(0.02, Made(self.cluster.projects, self.cluster.world(), decision))

    def scrape(self) -> dict[tuple[str, ...], float]:
        port = free_port()
        with serving(port, self.metrics):
            return scraped(port)


def test_a_round_is_told_in_numbers() -> None:
    there = Controller()
    there.cluster.submit("bert", "nlp", 1, 8)
    there.round()
    found = there.scrape()
    assert found["quota_leader",] == 1
    assert found["quota_capacity",] == 8
    assert {kind: found["quota_gpus", kind, "", "nlp"] for kind in KINDS} == {
        "guaranteed": 2, "fair_share": 8, "held": 0, "over_quota": 0, "lacking": 2,
    }  # fmt: skip
    assert found["quota_gpus", "guaranteed", "", "vision"] == 4
    assert found["quota_waiting_jobs", "", "nlp"] == 0
    assert found["quota_changes_total", "guarantee"] == 1
    assert found["quota_changes_total", "capacity"] == 0
    assert found["quota_round_seconds_count",] == 1
    assert found["quota_guarantee_seconds_count",] == 0


def test_the_seconds_from_demand_to_guarantee_are_counted_once() -> None:
    there = Controller()
    there.cluster.submit("bert", "nlp", 1, 8)
    there.round()
    there.cluster.now += 20
    there.cluster.follow()
    there.round()
    there.round()
    found = there.scrape()
    assert (found["quota_guarantee_seconds_count",], found["quota_guarantee_seconds_sum",]) == (1, 20)


def test_who_does_not_lead_has_no_figures_and_who_leads_again_begins_anew() -> None:
    there = Controller()
    there.cluster.submit("bert", "nlp", 1, 8)
    there.round()
    there.leads = False
    there.metrics.restart()
    there.round()
    found = there.scrape()
    assert found["quota_leader",] == 0
    assert not {name[0] for name in found} & {
        "quota_gpus",
        "quota_waiting_jobs",
        "quota_capacity",
        "quota_stale_seconds",
    }
    there.leads = True
    there.metrics.restart()
    found = there.scrape()
    assert "quota_gpus" not in {name[0] for name in found}, "a decision of before is not of now"
    assert (found["quota_leader",], found["quota_stale_seconds",]) == (1, 0)


def test_it_is_stale_while_something_can_not_be_read_or_no_round_is_made() -> None:
    there = Controller()
    there.round()
    there.cluster.now += 5
    assert there.scrape()["quota_stale_seconds",] == 5
    there.cluster.stale = True
    there.round()
    there.metrics.take(0.1, None)
    assert there.scrape()["quota_stale_seconds",] == 5
    there.cluster.stale = False
    there.round()
    assert there.scrape()["quota_stale_seconds",] == 0


def test_the_page_has_each_metric_and_each_kind() -> None:
    there = Controller()
    there.round()
    text = (ROOT / "docs" / "quota.md").read_text()
    rows = dict(re.findall(rf"^\| `{PREFIX}(quota_\w+)(?:{{[\w, ]+}})?` \| (.+) \|$", text, re.MULTILINE))
    shown = {family.name.removeprefix(PREFIX) for family in there.metrics.collect()}
    assert {name.removesuffix("_total") for name in rows} == shown
    assert set(KINDS) == set(re.findall(r"`(\w+)`", rows["quota_gpus"]))
