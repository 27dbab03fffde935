"""The quota controller beside a real Kueue: hints follow what queues admit, and what Kueue takes back is a notice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.support.cluster import pods
from tests.support.cluster.ends import end_training
from tests.support.cluster.kueue import LABEL, QUEUE, kueue, queues
from tests.support.cluster.quota import FOR_KUEUE, Controllers, controllers, launch, stages
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
ROUND = 30.0
"""Seconds: the longest time between two rounds of the controller."""
CALM = 60.0
"""Seconds without a change after which a decision counts as one that stays."""


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


def rigid(stage: Stage, name: str = "rigid") -> dict[str, Any]:
    """Returns a Job that wants two GPUs at once, wherever they are, and runs until it is deleted."""
    pod = pods.python_pod(stage.space, name, "-c", UNTIL_TOLD, gpus=1)["spec"]
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": IN_QUEUE},
        "spec": spec,
    }


def suspended(*stages: Stage) -> list[str]:
    """Returns the nodes' Jobs that Kueue does not admit."""
    found = [one for stage in stages for one in stage.get("jobs", "-l", NODE_LABEL)]
    return [one["metadata"]["name"] for one in found if one["spec"].get("suspend")]


def none_waits_for_longer_than_a_round(seconds: float, *stages: Stage) -> None:
    """Watches for a while that no node's Job is suspended in two looks that are a round apart."""
    since: dict[str, float] = {}

    def over() -> bool:
        now = time.monotonic()
        waiting = suspended(*stages)
        for name in [name for name in since if name not in waiting]:
            del since[name]
        for name in waiting:
            assert now - since.setdefault(name, now) <= ROUND, f"{name} was hinted, and Kueue does not admit it"
        return now - began >= seconds

    began = time.monotonic()
    until(over, "the time is over", seconds + LONG)


def runs(stage: Stage) -> bool:
    """Returns whether both pods of the rigid Job run."""
    return [one["status"]["phase"] for one in stage.get("pods", "-l", "job-name=rigid")] == ["Running", "Running"]


def admitted(stage: Stage) -> int:
    """Returns how many rigid Jobs Kueue lets run."""
    return sum(not one["spec"].get("suspend") for one in stage.get("jobs"))


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
        none_waits_for_longer_than_a_round(CALM, bert)
        assert there.changes(job) == [(0, 4), (4, 2)], "nothing flaps"

        vision.delete("job", "rigid")
        formed(bert, 4, shrunk["generation"], LONG)
        assert there.changes(job) == [(0, 4), (4, 2), (2, 4)]
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
        there.until("each has what its queue owns", {ids["bert"]: 2, ids["resnet"]: 2})
        before = {name: there.changes(job) for name, job in ids.items()}
        none_waits_for_longer_than_a_round(CALM, bert, resnet)
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
