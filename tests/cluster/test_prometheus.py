"""A real Prometheus has what the quota controller and a job tell it, and the alerts of the overlay."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic_launcher.host.prometheus import PREFIX, serving
from elastic_launcher.launcher.prometheus import JobCollector
from elastic_launcher.logged import Logged
from elastic_launcher.quota.controller import Made
from elastic_launcher.quota.metrics.exposition import KINDS, QuotaMetrics
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.report.state import JobState
from tests.support import histories
from tests.support.cluster.prometheus import Prometheus, prometheus
from tests.support.launches import PATIENCE, launched, until
from tests.support.leftovers import SCRIPT
from tests.support.manifests import MANIFESTS, objects
from tests.support.places import ROOT
from tests.support.quota_world import Cluster
from tests.support.scrapes import free_port

pytestmark = [pytest.mark.machine, pytest.mark.thorough, pytest.mark.timeout(1800)]

PROJECTS = """\
apiVersion: elastic-quota/v1
capacity: {gpus: 4}
projects:
- {name: research, guaranteed: 2}
- {name: nlp, guaranteed: 2, parent: research}
- {name: guest}
"""
OF_ADAPTIVE_BATCHES = {"global_batch": 64.0, "lr_factor": 1.5, "noise_scale": 90.0, "efficiency": 0.8}
FORMATS = ("OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText1.0.0", "PrometheusText0.0.4")
NAMES = (
    'a "quoted" name',
    "back\\slash",
    "two\nlines",
    "carriage\rreturn",
    "größe ≥ 5 ☃",
    "",
    "{}=,",
    "nul\0",
)
(ALERTS,) = objects(MANIFESTS / "overlays" / "quota-monitoring", "PrometheusRule")


def documented(page: str, heading: str) -> dict[str, tuple[set[str], str]]:
    """Returns the labels and the type of each metric that a section of a page lists, by its name without our prefix."""
    section = (ROOT / "docs" / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    found = {}
    for cell, meaning in re.findall(rf"^\| (`{PREFIX}.+?) \| (.+?) \|$", section, re.MULTILINE):
        for name, labels in re.findall(rf"`{PREFIX}(\w+)(?:{{([\w, ]+)}})?`", cell):
            kind = "histogram" if meaning.startswith("histogram") else "counter" if name.endswith("_total") else "gauge"
            found[name] = {one for one in labels.split(", ") if one}, kind
    return found


def asked(question: str) -> str:
    """Returns the expression that the page on quota has for a question."""
    found = re.search(rf"^\| {re.escape(question)} \| `(.+)` \|$", (ROOT / "docs/quota.md").read_text(), re.MULTILINE)
    assert found is not None, question
    return found[1]


def shown(there: Prometheus, name: str, kind: str) -> tuple[set[str], str | None]:
    """Returns the labels with which Prometheus has a metric, and its type."""
    series = there.ask("series", **{"match[]": f"{PREFIX}{name}" + "_bucket" * (kind == "histogram")})
    assert series, f"{name} is not there"
    labels = {label for one in series for label in one} - {"__name__", "instance", "job", "le"}
    types = there.ask("metadata")  # in which OpenMetrics' counters have no "_total"
    told = types.get(PREFIX + name) or types.get(PREFIX + name.removesuffix("_total")) or [{"type": None}]
    assert len(told) == 1, told
    return labels, told[0]["type"]


def test_what_the_pages_list_is_there_and_expressions_tell_what_projects_and_jobs_have(tmp_path: Path) -> None:
    (tmp_path / "projects.yaml").write_text(PROJECTS)
    jobs = tmp_path / "jobs"
    work_dir = histories.write(histories.resized().events[:3], jobs / "bert")
    histories.write_job(work_dir, config={"min_nodes": 1, "max_nodes": 3, "match": {"project": "nlp"}})
    ports = {"controller": free_port(), "job": free_port()}
    command = [sys.executable, "-m", "elastic_launcher", "quota", "serve", "projects.yaml", "--jobs", "jobs"]
    with ExitStack() as stack:
        there = stack.enter_context(prometheus(tmp_path, ports))
        controller = subprocess.Popen([*command, "--metrics-port", str(ports["controller"])], cwd=tmp_path)
        stack.callback(controller.kill)
        options = ["--project", "guest", "--nodes", "1:1", "--max-batch-per-gpu", "4", "--hints", jobs / "hints.json"]
        until((jobs / "hints.json").exists, "the first hints are there", 2 * PATIENCE)
        metrics = ("--metrics-port", str(ports["job"]))
        job = stack.enter_context(launched(*options, *metrics, "--", SCRIPT, cwd=tmp_path, work_dir=jobs / "tiny"))
        job.events.wait("progress", timeout=3 * PATIENCE)
        held = asked("How many GPUs does each project hold?")
        until(lambda: there.query(held).get(("guest",)) == 1, "Prometheus has the job's GPU", 2 * PATIENCE)
        until(lambda: there.value(f"{PREFIX}logged") == 0, "and what the job has logged")
        there.wait_up(*ports)
        of_controller = documented("quota.md", "Metrics")
        of_job = documented("events.md", "Prometheus metrics")
        assert len(of_controller) == 9 and len(of_job) > 15
        for name, wanted in (of_controller | of_job).items():
            if name not in OF_ADAPTIVE_BATCHES:
                assert shown(there, name, wanted[1]) == wanted, name

        assert there.query(held) == {("research",): 1, ("nlp",): 1, ("guest",): 1, ("default",): 0}
        assert there.query(asked("Who holds more than its guarantee?")) == {("guest",): 1}
        assert there.value(asked("What part of the GPUs is held?")) == 0.5
        assert there.query(f'sum by (kind, parent) ({PREFIX}quota_gpus{{project="nlp"}})') == {
            (kind, "research"): value for kind, value in zip(KINDS, (2, 3, 1, 0, 1), strict=True)
        }
        status = job.status()
        assert there.value(f"{PREFIX}world_size") == status["world_size"] == 1
        assert 0 < (there.value(f"{PREFIX}step") or 0) <= job.status()["step"]
        assert there.query(f"{PREFIX}hint_gpus") == {("job", "allowed"): 1, ("job", "guaranteed"): 0}

        (tmp_path / "stop").touch()
        assert job.wait() == 0
        until(lambda: not there.query(f"{PREFIX}world_size"), "an ended job has no values")
        until(lambda: there.query(held).get(("guest",)) == 0, "its GPU is free")
        controller.send_signal(signal.SIGTERM)
        assert controller.wait(PATIENCE) == 0


class Controllers:
    """Two controllers of a small cluster with a job, and a clock of their own."""

    def __init__(self) -> None:
        self.cluster = Cluster(Projects((Project("nlp", guaranteed=2), Project("vision")), grow_after=0.0), 8)
        self.leaders: set[str] = set()
        self.metrics = {name: self._metrics(name) for name in ("first", "second")}

    def _metrics(self, name: str) -> QuotaMetrics:
        return QuotaMetrics(lambda: name in self.leaders, lambda: self.cluster.now)

    def round(self, *leaders: str) -> None:
        """Has some of them make a round, which lead from now on."""
        for name in self.leaders.symmetric_difference(leaders):
            self.metrics[name].restart()
        self.leaders = set(leaders)
        for name in leaders:
            made = Made(self.cluster.projects, self.cluster.world(), self.cluster.round())
            self.metrics[name].take(0.02, made)

    def wait_for_guarantee(self, leader: str, seconds: float) -> None:
        """Has a job wait for GPUs of its guarantee, and get them."""
        self.cluster.submit("bert", "nlp", 1, 8)
        self.round(leader)
        self.cluster.now += seconds
        self.cluster.follow()
        self.round(leader)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[Controllers, Prometheus]]:
    """Gives controllers, and the Prometheus that asks both and has the rules of the overlay."""
    controllers = Controllers()
    ports = {name: free_port() for name in controllers.metrics}
    with ExitStack() as stack:
        for name, metrics in controllers.metrics.items():
            stack.enter_context(serving(ports[name], metrics))
        yield controllers, stack.enter_context(prometheus(tmp_path, ports, rules=ALERTS["spec"]))


def test_the_alerts_of_the_overlay_say_what_is_wrong_and_nothing_else(played: tuple[Controllers, Prometheus]) -> None:
    controllers, there = played
    usual = {rule["alert"]: "inactive" for group in ALERTS["spec"]["groups"] for rule in group["rules"]}

    def become(**alerts: str) -> None:
        wanted = usual | {f"ElasticQuota{name}": state for name, state in alerts.items()}
        until(lambda: there.alerts() == wanted, f"the alerts are {alerts or 'inactive'}")

    become(NoLeader="pending")
    controllers.round("first")
    become()
    controllers.cluster.submit("bert", "nlp", 1, 8)
    controllers.round("first")
    become(GuaranteeMissed="pending")
    controllers.cluster.now += 121
    become(GuaranteeMissed="pending", Stale="firing")
    controllers.cluster.follow()
    controllers.round("first")
    become(GuaranteeSlow="firing")
    controllers.round("second")
    become(GuaranteeSlow="firing")
    controllers.round()
    become(GuaranteeSlow="firing", NoLeader="pending")


def test_nothing_counts_twice_or_backwards_when_the_leader_changes(played: tuple[Controllers, Prometheus]) -> None:
    controllers, there = played
    held = asked("How many GPUs does each project hold?")

    def lead(*leaders: str) -> None:
        controllers.round(*leaders)
        wanted = {(name,): float(name in leaders) for name in controllers.metrics}
        until(lambda: there.query(f"{PREFIX}quota_leader") == wanted, f"{leaders} lead")

    lead("first")
    controllers.wait_for_guarantee("first", 20)
    for leaders in ("first",), ("first", "second"), ("second",), ("first",):
        lead(*leaders)
        until(lambda: there.query(held) == {("nlp",): 8, ("vision",): 0}, f"the figures are those of {leaders}")
        assert there.value(asked("What part of the GPUs is held?")) == 1
    for name in ("changes_total", "round_seconds_count", "guarantee_seconds_bucket"):
        assert there.value(f"max(resets({PREFIX}quota_{name}[5m]))") == 0, name
    assert there.value(f"sum({PREFIX}quota_guarantee_seconds_count)") == 1
    assert there.value(asked("Within which seconds do 95% of the demands get what is guaranteed?")) == 19.5
    controllers.cluster.projects = Projects((Project("nlp", guaranteed=2),), grow_after=0.0)
    controllers.round("first")
    until(lambda: there.query(held).keys() == {("nlp",)}, "a removed project has no figures")
    changes = there.query(asked("How often did each cause change something?"))
    assert {cause for (cause,), count in changes.items() if count} == {"guarantee"}


def test_an_adaptive_batch_and_whatever_a_script_logs_arrive_in_every_format(tmp_path: Path) -> None:
    values = {name: float(number) for number, name in enumerate(NAMES)}
    adaptive = {name.removeprefix("global_"): value for name, value in OF_ADAPTIVE_BATCHES.items()}
    state = JobState(adaptive=adaptive, log=Logged().add(1, 0, values | {"of \udcff.wav": -1.0})[0])
    port = free_port()
    ports = dict.fromkeys(("as it asks", *FORMATS), port)
    formats = {name: [name] for name in FORMATS}
    with serving(port, JobCollector(lambda: state)), prometheus(tmp_path, ports, formats) as there:
        there.wait_up(*ports)
        wanted = {((name,) if name else ()): value for name, value in values.items()} | {(r"of \udcff.wav",): -1.0}
        for job in ports:
            assert there.query(f'sum by (name) ({PREFIX}logged{{job="{job}"}})') == wanted, job
            for name, value in OF_ADAPTIVE_BATCHES.items():
                assert there.value(f'{PREFIX}{name}{{job="{job}"}}') == value, (job, name)
        for name in OF_ADAPTIVE_BATCHES:
            assert shown(there, name, "gauge") == (set(), "gauge"), name
