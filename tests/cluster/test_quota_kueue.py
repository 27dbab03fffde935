"""The quota controller beside a real Kueue: hints follow what queues admit, and what Kueue takes back is a notice."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import KIND_LABEL, NODE_LABEL
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.support.cluster import pods
from tests.support.cluster.ends import end_training
from tests.support.cluster.kueue import GROUP, LABEL, QUEUE, kueue, queues
from tests.support.cluster.quota import FOR_KUEUE, Controllers, allowed, controllers, launch, stages
from tests.support.cluster.stage import LONG, PLACES, Stage
from tests.support.cluster.taken_gpus import fill
from tests.support.launches import until
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.thorough, pytest.mark.timeout(1800)]

GPU = "nvidia.com/gpu"
IN_QUEUE = {QUEUE: "gpus"}
COHORT = "elastic-test"
UNTIL_TOLD = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM]); s.sigwait([s.SIGTERM])"
DOCUMENT = """
apiVersion: elastic-quota/v1
unmatched: refuse
gracePeriodSeconds: 60
growAfterSeconds: 2
capacity: {machines: {}, kueue: {}}
"""
PRIORITY = "kueue.x-k8s.io/priority-class"
CLASSES = {"elastic-test-owned": 1000, "elastic-test-lent": 10}
KINDS = {
    "guaranteed": {"labels": {PRIORITY: "elastic-test-owned"}},
    "overQuota": {"labels": {PRIORITY: "elastic-test-lent"}},
}
ROUND = 30.0
"""Seconds: the longest time between two rounds of the controller."""
CALM = 60.0
"""Seconds without a change after which a decision counts as one that stays."""
BETWEEN = 45.0
"""Seconds of calm between two changes: longer than a round."""
TEN_MINUTES = 600.0
PACE = 1.0
"""Seconds between two looks, which take the machine's time from what they look at."""


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Gives a cluster with Kueue, in which two GPUs are free on each of two machines."""
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    with kueue(kubectl, PLACES, tmp_path_factory.mktemp("kueue")), pods.namespace(kubectl, "filled") as filled:
        fill(kubectl, filled, 2, 2)
        yield kubectl


@pytest.fixture(scope="module")
def there(kubectl: Kubectl) -> Iterator[Controllers]:
    """Gives the controllers, with Kueue's queues for projects."""
    with controllers(FOR_KUEUE) as there:
        there.projects(DOCUMENT)
        yield there


@contextmanager
def queued(folder: Path, there: Controllers, *names: str) -> Iterator[list[Stage]]:
    """Gives a namespace with a queue of two GPUs for each name; the queues lend to each other, and take it back."""
    with removed_later(there.kubectl) as made, stages(folder, there, *names) as found:
        for stage in found:
            there.kubectl("label", "namespace", stage.space, f"{LABEL}=yes")
            of_queue = queues(stage.space, **{GPU: 2})
            of_queue[1]["spec"] |= {"cohortName": COHORT, "preemption": {"reclaimWithinCohort": "Any"}}
            made += of_queue
            there.kubectl.apply(*of_queue)
        yield found


@contextmanager
def removed_later(kubectl: Kubectl) -> Iterator[list[dict[str, Any]]]:
    """Gives a list; at the end, the ClusterQueues in it are removed, which no Workload is in any more."""
    made: list[dict[str, Any]] = []
    yield made
    for one in made:
        if one["kind"] == "ClusterQueue":
            kubectl("delete", "clusterqueues.kueue.x-k8s.io", one["metadata"]["name"])


def rigid(stage: Stage, name: str = "rigid", nodes: int = 2) -> dict[str, Any]:
    """Returns a Job that wants some GPUs at once, wherever they are, and runs until it is deleted."""
    pod = pods.python_pod(stage.space, name, "-c", UNTIL_TOLD, gpus=1)["spec"]
    spec = {"parallelism": nodes, "completions": nodes, "template": {"spec": pod}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": IN_QUEUE},
        "spec": spec,
    }


class Watch:
    """Looks at hints and at admission; fails where a node waits for longer than a round because of a hint.

    Args:
        there: The controllers.
        jobs: Where each elastic job is, by its id.
    """

    def __init__(self, there: Controllers, jobs: Mapping[str, Stage]) -> None:
        self._there = there
        self._jobs = jobs
        self._document: dict[str, Any] = {}
        self._since: dict[str, float] = {}
        self._longest = 0.0

    def _look(self) -> dict[str, tuple[int, int, int]]:
        """Returns of each job what it is hinted, how many of its nodes Kueue admits, and how many wait.

        Nodes that are being deleted have left. Where there are more nodes than hinted, as after Kueue took some back,
        the others are about to leave: it is not because of a hint that they wait.
        """
        time.sleep(PACE)
        found, since, now = {}, {}, time.monotonic()
        nodes = {job: list(filter(_stays, stage.get("jobs", "-l", NODE_LABEL))) for job, stage in self._jobs.items()}
        self._document = self._there.document()
        hinted = allowed(self._document)
        for job, there in nodes.items():
            waiting = [_name(one) for one in there if one["spec"].get("suspend")]
            found[job] = hinted.get(job, 0), len(there) - len(waiting), len(waiting)
            if len(there) <= hinted.get(job, 0):
                since |= {name: self._since.get(name, now) for name in waiting}
        self._since = since
        for name, began in since.items():
            self._longest = max(self._longest, now - began)
            assert now - began <= ROUND, f"{name} was hinted, and Kueue does not admit it"
        return found

    def agrees(self, what: str, wanted: Mapping[str, int]) -> None:
        """Waits until each job is hinted so many GPUs and has as many nodes, all of them admitted.

        What counts is a decision from now on: on a busy machine, the last one may not know yet what has just happened.
        """
        began, moment = time.monotonic(), datetime.now(UTC)
        agreed = {job: (gpus, gpus, 0) for job, gpus in wanted.items()}

        def so() -> bool:
            found, document = self._look(), self._document
            decided = datetime.fromisoformat(document["observedAt"]) >= moment
            return decided and found == agreed and not any("reclaim" in row for row in document["hints"])

        until(so, what, LONG)
        print(f"{what}: hints and admission agree after {time.monotonic() - began:.1f} s")

    def stays(self, seconds: float) -> None:
        """Looks for a while, in which no hint changes, and admission neither."""
        began, agreed = time.monotonic(), self._look()
        hints = self._document["hints"]

        def over() -> bool:
            assert self._look() == agreed
            assert self._document["hints"] == hints, "hints change though nothing else does"
            return time.monotonic() - began >= seconds

        until(over, "the time is over", seconds + LONG)
        print(f"unchanged for {time.monotonic() - began:.0f} s; a node waited for {self._longest:.1f} s at most so far")


def turns(changes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns changes, with growth in several steps as one, and so with shrinks.

    GPUs come free one by one where pods end one by one.
    """
    found: list[tuple[int, int]] = []
    for before, after in changes:
        if found and (found[-1][0] < found[-1][1]) == (before < after):
            before = found.pop()[0]
        found.append((before, after))
    return found


def _stays(one: Mapping[str, Any]) -> bool:
    """Returns whether an object is not being deleted."""
    return "deletionTimestamp" not in one["metadata"]


def _name(one: Mapping[str, Any]) -> str:
    return str(one["metadata"]["name"])


def runs(stage: Stage, nodes: int = 2) -> bool:
    """Returns whether all pods of the rigid Job run."""
    return [one["status"]["phase"] for one in stage.get("pods", "-l", "job-name=rigid")] == ["Running"] * nodes


def admitted(stage: Stage) -> int:
    """Returns how many rigid Jobs Kueue lets run."""
    return sum(not one["spec"].get("suspend") for one in stage.get("jobs"))


def of_kind(stage: Stage) -> dict[str, set[int]]:
    """Returns the nodes that have a pod, by their kind."""
    found: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for node, pod in stage.nodes().items():
        found[pod["metadata"]["labels"][KIND_LABEL]].add(node)
    return found


def preempted(stage: Stage) -> set[int]:
    """Returns the nodes whose Workloads Kueue has preempted."""
    events = stage.get("events", "--field-selector=reason=Preempted,involvedObject.kind=Workload")
    names = [re.fullmatch(r"job-.*-(\d+)-[^-]+", one["involvedObject"]["name"]) for one in events]
    return {int(found[1]) for found in names if found is not None}


def test_hints_and_admission_agree_while_a_queue_borrows_and_its_owner_takes_back(
    there: Controllers, tmp_path: Path
) -> None:
    with queued(tmp_path, there, "bert", "vision") as (bert, vision):
        job = launch(bert, there, "bert", "1:4", labels=IN_QUEUE)
        borrowed = formed(bert, 4, 0, LONG)
        (launcher,) = bert.launchers()
        assert there.changes(job) == [(0, 4)]

        vision.apply(rigid(vision))
        there.until("the owner's GPUs are taken back", {job: 2})
        until(lambda: runs(vision), "the other queue's job runs", LONG)
        shrunk = formed(bert, 2, borrowed["generation"], LONG)
        watch = Watch(there, {job: bert})
        watch.agrees("the owner has come", {job: 2})
        watch.stays(CALM)
        assert turns(there.changes(job)) == [(0, 4), (4, 2)], "nothing flaps"

        vision.delete("job", "rigid")
        formed(bert, 4, shrunk["generation"], LONG)
        assert turns(there.changes(job)) == [(0, 4), (4, 2), (2, 4)]
        assert [one["metadata"]["uid"] for one in bert.launchers()] == [launcher["metadata"]["uid"]], (
            "no retry is spent"
        )
        assert not bert.events.of("node_lost")
        end_training(bert)


def test_an_elastic_job_gets_the_quota_back_that_its_queue_has_lent(there: Controllers, tmp_path: Path) -> None:
    with queued(tmp_path, there, "bert", "resnet") as (bert, resnet):
        ids = {"bert": launch(bert, there, "bert", "1:4", labels=IN_QUEUE)}
        borrowed = formed(bert, 4, 0, LONG)
        ids["resnet"] = launch(resnet, there, "resnet", "1:4", labels=IN_QUEUE)
        formed(bert, 2, borrowed["generation"], LONG)
        formed(resnet, 2, 0, LONG)
        watch = Watch(there, {ids["bert"]: bert, ids["resnet"]: resnet})
        watch.agrees("each has what its queue owns", {ids["bert"]: 2, ids["resnet"]: 2})
        before = {name: there.changes(job) for name, job in ids.items()}
        watch.stays(CALM)
        assert {name: there.changes(job) for name, job in ids.items()} == before, "nothing flaps"
        assert not [one for stage in (bert, resnet) for one in stage.events.of("node_lost")]
        end_training(resnet)
        there.until("what nobody else uses is borrowed again", {ids["bert"]: 4})
        end_training(bert)


def test_a_queue_whose_quota_others_borrow_takes_it_back_for_an_elastic_job(there: Controllers, tmp_path: Path) -> None:
    with queued(tmp_path, there, "resnet", "crowd") as (resnet, crowd):
        crowd.apply(rigid(crowd, "one"), rigid(crowd, "two"))
        until(lambda: admitted(crowd) == 2, "others have borrowed all", LONG)
        job = launch(resnet, there, "resnet", "2:2", labels=IN_QUEUE)
        formed(resnet, 2, 0, LONG)
        assert there.changes(job) == [(0, 2)]
        assert admitted(crowd) == 1, "Kueue took back what was borrowed, and no more"
        end_training(resnet)


def test_kueue_takes_the_nodes_above_the_guarantee_first_though_they_are_the_older_ones(
    there: Controllers, tmp_path: Path
) -> None:
    with queued(tmp_path, there, "bert", "vision") as (bert, vision):
        kind = {"apiVersion": GROUP, "kind": "WorkloadPriorityClass"}
        there.kubectl.apply(*({**kind, "metadata": {"name": name}, "value": value} for name, value in CLASSES.items()))
        launch(bert, there, "bert", "1:4", labels=IN_QUEUE, kinds=KINDS)
        borrowed = formed(bert, 4, 0, LONG)
        before = of_kind(bert)
        oldest = min(before["guaranteed"])
        bert.delete("pod", bert.nodes()[oldest]["metadata"]["name"])
        whole = formed(bert, 4, borrowed["generation"], LONG)
        until(lambda: sum(map(len, of_kind(bert).values())) == 4, "the pod of the node that left is gone", LONG)
        kinds = of_kind(bert)
        assert max(kinds["guaranteed"]) > max(kinds["overQuota"]), "the newest node is within the guarantee"

        vision.apply(rigid(vision))
        until(lambda: runs(vision), "the other queue's job runs", LONG)
        formed(bert, 2, whole["generation"], LONG)
        assert preempted(bert) == kinds["overQuota"] == before["overQuota"]
        until(lambda: set(bert.nodes()) == kinds["guaranteed"], "the nodes within the guarantee stay", LONG)
        assert not bert.events.of("node_lost")
        end_training(bert)


def test_ten_minutes_with_an_owner_who_comes_and_goes_end_as_they_began(there: Controllers, tmp_path: Path) -> None:
    with queued(tmp_path, there, "bert", "vision") as (bert, vision):
        job = launch(bert, there, "bert", "1:4", labels=IN_QUEUE)
        formed(bert, 4, 0, LONG)
        (launcher,) = bert.launchers()
        watch, began = Watch(there, {job: bert}), time.monotonic()
        watch.agrees("it borrows", {job: 4})
        expected = [(0, 4)]
        for nodes in (2, 1, 2):
            vision.apply(rigid(vision, nodes=nodes))
            watch.agrees(f"the owner comes for {nodes}", {job: 4 - nodes})
            until(partial(runs, vision, nodes), "the owner's job runs", LONG)
            watch.stays(BETWEEN)
            vision.delete("job", "rigid")
            watch.agrees("the owner goes", {job: 4})
            watch.stays(BETWEEN)
            expected += [(4, 4 - nodes), (4 - nodes, 4)]
        assert turns(there.changes(job)) == expected, there.changes(job)

        vision.apply(rigid(vision))
        until(lambda: admitted(vision), "the owner comes", LONG)
        vision.delete("job", "rigid")
        watch.agrees("the owner has gone at once", {job: 4})
        watch.stays(max(BETWEEN, TEN_MINUTES - (time.monotonic() - began)))
        assert turns(there.changes(job))[len(expected) :] in ([], [(4, 2), (2, 4)]), there.changes(job)

        assert [one["metadata"]["uid"] for one in bert.launchers()] == [launcher["metadata"]["uid"]], (
            "no retry is spent"
        )
        assert not bert.events.of("node_lost")
        end_training(bert)
