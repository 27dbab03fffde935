"""The loop in a cluster: one of several controllers leads, and each goes on from what the one before has written."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError
from elastic_launcher.quota.cluster.serve import Served, serve
from tests.support.fake_cluster import FakeCluster
from tests.support.quota_reports import report, service
from tests.support.scrapes import free_port, scraped

PATIENCE = 30.0
HINTS, DOCUMENT = Reference("quota", "gpu-hints"), Reference("quota", "gpu-projects")
PROJECTS = """
apiVersion: elastic-quota/v1
capacity: {gpus: 4}
growAfterSeconds: 0
ttlSeconds: 3600
projects:
- {name: nlp, guaranteed: 2, match: {namespace: nlp}}
- {name: vision, guaranteed: 2, match: {namespace: vision}}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a Lease last for a moment, and rounds follow each other at once."""
    monkeypatch.setattr("elastic_launcher.kube.lease.RENEW_SECONDS", 0.02)
    monkeypatch.setattr("elastic_launcher.kube.lease.LEAD_SECONDS", 1.0)
    monkeypatch.setattr("elastic_launcher.kube.lease.LEASE_SECONDS", 2)
    monkeypatch.setattr("elastic_launcher.quota.cluster.serve.DEBOUNCE_SECONDS", 0.02)
    monkeypatch.setattr("elastic_launcher.quota.cluster.serve.RETRY_SECONDS", 0.05)


class Controllers:
    """The controllers of a cluster, and what they have written.

    Attributes:
        cluster: The cluster.
        login: How it is reached.
        said: The lines of each controller.
    """

    def __init__(self, cluster: FakeCluster, login: Login, tasks: AsyncExitStack) -> None:
        self.cluster = cluster
        self.said: list[list[str]] = []
        self.login = login
        self._tasks = tasks
        self._stops: list[asyncio.Event] = []
        self._running: list[asyncio.Task[None]] = []

    def start(self, projects: Reference | Path = DOCUMENT, metrics_port: int | None = None) -> int:
        """Starts another controller; returns its number."""
        said: list[str] = []
        stop = asyncio.Event()
        task = asyncio.create_task(serve(self.login, Served(HINTS, projects, (), metrics_port), said.append, stop))
        self._tasks.push_async_callback(self.kill, len(self._running))
        self.said.append(said)
        self._stops.append(stop)
        self._running.append(task)
        return len(self._running) - 1

    async def stop(self, number: int) -> None:
        """Stops a controller as SIGTERM does."""
        self._stops[number].set()
        await self._running[number]

    async def kill(self, number: int) -> None:
        """Ends a controller without a chance to give its Lease back."""
        self._running[number].cancel()
        await asyncio.wait([self._running[number]])

    async def projects(self, text: str) -> None:
        """Writes the projects document."""
        await self.cluster.put("configmaps", configmap("gpu-projects", {"projects.yaml": text}))

    async def job(self, name: str, namespace: str, **shown: Any) -> None:
        """Writes what a job reports."""
        await self.cluster.put("services", service(name, namespace, report(name, **shown)))

    def document(self) -> dict[str, Any]:
        """Returns the hints."""
        found = self.cluster.get("configmaps", HINTS.name, HINTS.namespace)
        return {"hints": []} if found is None else dict(json.loads(found["data"]["hints.json"]))

    def allowed(self) -> dict[str, int]:
        """Returns what the hints allow each job to keep, by its id."""
        rows = {row["match"]["id"]: row for row in self.document()["hints"]}
        return {job: row.get("reclaim", {}).get("to", row["gpus"]["allowed"]) for job, row in rows.items()}

    async def until(self, allowed: dict[str, int]) -> dict[str, Any]:
        """Waits until the hints allow this; returns them."""
        await self.cluster.until(lambda: self.allowed() == allowed)
        return self.document()

    def history(self) -> list[dict[str, Any]]:
        """Returns the changes that were recorded."""
        found = self.cluster.get("configmaps", "gpu-hints-history", "quota") or {"data": {}}
        return [json.loads(line) for line in found["data"].get("history.jsonl", "").splitlines()]

    def lines(self, number: int, text: str) -> list[str]:
        """Returns the lines of a controller that hold a text."""
        return [line for line in self.said[number] if text in line]


Steps = Callable[[Controllers], Awaitable[None]]


def configmap(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "quota"}, "data": data}


def machine(name: str, gpus: int) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [ready]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def play(steps: Steps) -> None:
    """Runs the steps of a test on a cluster with a projects document."""

    async def run() -> None:
        cluster = FakeCluster()
        async with cluster.serve() as login, AsyncExitStack() as tasks, asyncio.timeout(PATIENCE):
            controllers = Controllers(cluster, login, tasks)
            await controllers.projects(PROJECTS)
            try:
                await steps(controllers)
            finally:  # pytest shows it beside what failed
                print("\n".join(f"{number}: {line}" for number, said in enumerate(controllers.said) for line in said))
                print(json.dumps(controllers.document(), indent=1))

    asyncio.run(run())


def test_a_job_gets_its_hint_and_the_change_is_recorded() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        document = await there.until({"bert": 4})
        assert document["defaults"] == {"gpus": {"allowed": 0}, "waitSeconds": 86_400.0}, "a new job waits for its hint"
        (row,) = await there.cluster.until(there.history)
        assert (row["job"], row["project"], row["before"], row["after"]) == ("bert", "nlp", 0, 4)
        (event,) = await there.cluster.until(lambda: there.cluster.all("events"))
        assert event["message"] == row["reason"] and there.lines(0, f"bert: {row['reason']}")
        assert event["involvedObject"]["uid"] == "uid-nlp-bert" and event["metadata"]["namespace"] == "nlp"
        assert event["reason"] == "QuotaRaised"

    play(steps)


def test_one_of_two_leads_and_the_other_goes_on_when_it_is_stopped() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        first = await there.until({"bert": 4})
        there.start()
        await there.cluster.until(lambda: there.lines(1, "is held by"))
        await there.stop(0)
        await there.job("bert", "nlp", maximum=4, held=4, allowed=4, generation=first["generation"])
        await there.job("resnet", "vision", minimum=2, maximum=2)
        second = await there.until({"bert": 2, "resnet": 0})
        assert second["generation"] > first["generation"]
        assert there.lines(1, "leads, and writes ConfigMap quota/gpu-hints")
        assert there.said[0][-1] == "stopped; another controller may lead"

    play(steps)


def test_a_controller_that_is_killed_during_a_reclaim_is_followed_by_one_that_completes_it() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        first = await there.until({"bert": 4})
        held = {"maximum": 4, "held": 4}
        await there.job("bert", "nlp", allowed=4, generation=first["generation"], **held)
        await there.job("resnet", "vision", minimum=2, maximum=2)
        reclaim = await there.until({"bert": 2, "resnet": 0})
        await there.cluster.until(lambda: len(there.history()) == 2)
        await there.kill(0)
        there.start()
        await there.cluster.until(lambda: there.lines(1, "leads, and writes"))
        await there.job("bert", "nlp", allowed=2, generation=reclaim["generation"], **held)
        after = await there.cluster.until(lambda: newer(there.document(), reclaim))
        assert there.allowed() == {"bert": 2, "resnet": 0}, "bert holds them still"
        rows = [next(row for row in one["hints"] if row["match"]["id"] == "bert") for one in (reclaim, after)]
        assert rows[0] == rows[1], "with the time that it was given"
        held = {"maximum": 4, "held": 2}
        await there.job("bert", "nlp", allowed=2, generation=reclaim["generation"], **held)
        await there.until({"bert": 2, "resnet": 2})
        await there.cluster.until(lambda: len(there.history()) == 3)
        assert [(row["job"], row["after"]) for row in there.history()] == [("bert", 4), ("bert", 2), ("resnet", 2)]

    play(steps)


def newer(document: dict[str, Any], old: dict[str, Any]) -> dict[str, Any] | None:
    return document if document["generation"] > old["generation"] else None


def test_a_broken_projects_document_is_refused_and_the_last_good_one_holds_for_the_next_controller_too() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        await there.until({"bert": 4})
        await there.projects(PROJECTS.replace("guaranteed: 2", "guaranteed: -2"))
        (line,) = await there.cluster.until(lambda: there.lines(0, "stays in force"))
        assert "ConfigMap quota/gpu-projects, key projects.yaml: line 7" in line
        await there.job("gpt", "nlp", maximum=1)
        await there.until({"bert": 3, "gpt": 0})
        await there.kill(0)
        there.start()
        await there.cluster.until(lambda: there.lines(1, "stays in force"))
        await there.job("bert", "nlp", maximum=4, allowed=3, generation=there.document()["generation"])
        await there.until({"bert": 3, "gpt": 1})
        await there.projects(PROJECTS.replace("gpus: 4", "gpus: 3"))
        await there.until({"bert": 2, "gpt": 1})

    play(steps)


def test_without_any_good_document_nothing_is_written_until_there_is_one() -> None:
    async def steps(there: Controllers) -> None:
        await there.projects("projects: 7")
        await there.job("bert", "nlp", maximum=4)
        there.start()
        await there.cluster.until(
            lambda: there.lines(0, "no round: ConfigMap quota/gpu-projects, key projects.yaml: line 1")
        )
        assert there.cluster.get("configmaps", HINTS.name, "quota") is None
        await there.projects(PROJECTS)
        await there.until({"bert": 4})

    play(steps)


def test_an_entry_that_is_written_by_hand_counts_at_once() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        document = await there.until({"bert": 4})
        document["hints"].append({"match": {"id": "bert"}, "gpus": {"allowed": 1}, "priority": 1})
        await there.cluster.put("configmaps", configmap(HINTS.name, {"hints.json": json.dumps(document)}))
        await there.cluster.until(lambda: [row for row in there.history() if row["cause"] == "hand"])
        assert [row["gpus"]["allowed"] for row in there.document()["hints"] if "priority" in row] == [1]

    play(steps)


def test_hints_exceed_what_is_there_where_machines_come_for_pods_that_wait() -> None:
    autoscaled = PROJECTS.replace("{gpus: 4}", "{autoscale: {max: 8}}")

    async def steps(there: Controllers) -> None:
        await there.projects(autoscaled)
        there.start()
        await there.job("bert", "nlp", maximum=8)
        await there.until({"bert": 3})
        assert there.document()["source"]["ledger"]["plan"]["there"] == 0
        await there.cluster.put("nodes", machine("m0", 4))
        await there.until({"bert": 4})
        await there.job("bert", "nlp", maximum=8, held=4, allowed=4, speeds={"4": 4.0})
        await there.until({"bert": 8})

    play(steps)


def test_the_document_may_be_a_file(tmp_path: Path) -> None:
    async def steps(there: Controllers) -> None:
        path = tmp_path / "projects.yaml"
        path.write_text(PROJECTS)
        there.start(path)
        await there.job("bert", "nlp", maximum=4)
        document = await there.until({"bert": 4})
        assert document["hints"][0]["match"] == {"id": "bert"}

    play(steps)


def test_an_api_server_that_was_away_is_served_again() -> None:
    async def steps(there: Controllers) -> None:
        there.start()
        await there.job("bert", "nlp", maximum=4)
        document = await there.until({"bert": 4})
        there.cluster.down = True
        await there.cluster.forget()
        while not there.lines(0, "is held by"):  # it could not renew its Lease
            await asyncio.sleep(0.01)
        await there.job("bert", "nlp", maximum=4, held=4, allowed=4, generation=document["generation"])
        await there.job("resnet", "vision", minimum=2, maximum=2)
        there.cluster.down = False
        after = await there.until({"bert": 2, "resnet": 0})
        assert after["generation"] > document["generation"]

    play(steps)


def test_missing_rights_are_said_with_what_grants_them() -> None:
    async def steps(there: Controllers) -> None:
        there.cluster.forbidden = {("create", "events")}
        there.start()
        await there.job("bert", "nlp", maximum=4)
        await there.until({"bert": 4})
        await there.cluster.until(lambda: there.lines(0, "no Event can be written"))
        (line,) = there.lines(0, "manifests/overlays/quota-controller grants that")
        assert "it may not create events of the cluster" in line
        assert len(there.history()) == 1

    play(steps)


def test_a_resource_quota_bounds_jobs_from_the_round_on_in_which_the_document_names_it() -> None:
    async def steps(there: Controllers) -> None:
        hard = {"requests.nvidia.com/gpu": "3"}
        await there.cluster.put(
            "resourcequotas", {"metadata": {"name": "gpus", "namespace": "nlp"}, "spec": {"hard": hard}}
        )
        there.start()
        await there.job("bert", "nlp", maximum=4)
        document = await there.until({"bert": 4})
        await there.job("bert", "nlp", maximum=4, held=4, allowed=4, generation=document["generation"])
        await there.projects(PROJECTS.replace("gpus: 4", "gpus: 4, resourceQuotas: {}"))
        await there.until({"bert": 3})
        (row,) = await there.cluster.until(lambda: there.history()[1:])
        assert (row["cause"], row["reason"]) == ("limit", "4 → 3 GPUs: ResourceQuota nlp/gpus leaves 3")

    play(steps)


def test_queues_of_kai_need_no_projects_in_the_document() -> None:
    async def steps(there: Controllers) -> None:
        gpu = {"quota": 2, "limit": 3, "overQuotaWeight": 1}
        await there.cluster.put("queues", {"metadata": {"name": "team-a"}, "spec": {"resources": {"gpu": gpu}}})
        await there.projects("apiVersion: elastic-quota/v1\ncapacity: {gpus: 4, kai: {}}\nunmatched: refuse\n")
        there.start()
        await there.job("bert", "nlp", maximum=4, match={"id": "bert", "queue": "team-a"})
        document = await there.until({"bert": 3})
        assert document["hints"][0]["gpus"] == {"guaranteed": 2, "allowed": 3, "limit": 3}

    play(steps)


async def told(port: int, *sample: str) -> dict[tuple[str, ...], float]:
    """Returns what a port tells Prometheus as soon as it has a sample that is not 0."""
    while not (found := await asyncio.to_thread(scraped, port)).get(sample):
        await asyncio.sleep(0)
    return found


def test_the_leader_alone_tells_prometheus_figures_and_the_next_one_does_when_it_leads() -> None:
    async def steps(there: Controllers) -> None:
        ports = [free_port(), free_port()]
        there.start(metrics_port=ports[0])
        await there.job("bert", "nlp", maximum=4)
        await there.until({"bert": 4})
        there.start(metrics_port=ports[1])
        await there.cluster.until(lambda: there.lines(1, "waits: Lease"))
        leader = await told(ports[0], "quota_changes_total", "guarantee")
        assert (leader["quota_leader",], leader["quota_capacity",]) == (1, 4)
        assert leader["quota_gpus", "guaranteed", "", "nlp"] == 2
        follower = await asyncio.to_thread(scraped, ports[1])
        assert follower["quota_leader",] == 0
        assert not {name for name, *_ in follower} & {"quota_gpus", "quota_capacity", "quota_stale_seconds"}
        await there.stop(0)
        following = await told(ports[1], "quota_capacity")
        assert (following["quota_leader",], following["quota_capacity",]) == (1, 4)

    play(steps)


def test_a_port_for_prometheus_that_is_taken_ends_it() -> None:
    async def steps(there: Controllers) -> None:
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            served = Served(HINTS, DOCUMENT, metrics_port=port)
            with pytest.raises(ConfigError, match=f"--metrics-port {port} can't be listened at"):
                await serve(there.login, served, print, asyncio.Event())

    play(steps)
