"""What a run has left behind is ended: by its label alone, and not what a coordinator still governs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL, RUN_LABEL
from elastic_launcher.kfp_steps import cleanup
from elastic_launcher.kfp_steps.cleanup import cleanup_step
from elastic_launcher.kube.login import Login
from elastic_launcher.pipeline_step import StepFailed
from tests.support.kfp_bodies import pod

JOBS, PODS = "/apis/batch/v1/namespaces/ml/jobs", "/api/v1/namespaces/ml/pods"


class Cluster:
    """Jobs and pods of a namespace.

    Attributes:
        jobs: Name and labels of each.
        deleted: Name and options of each request.
        coordinators: The phase of the pod of each job's coordinator, of which each look takes one.
        status: What deletions are answered with.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, str]] = {}
        self.deleted: list[tuple[str, Any]] = []
        self.coordinators: dict[str, list[str]] = {}
        self.status = 200

    async def _list_jobs(self, request: web.Request) -> web.Response:
        wanted = [part.partition("=") for part in request.query["labelSelector"].split(",")]
        found = [
            {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}}
            for name, labels in self.jobs.items()
            if all(key in labels and (not equals or labels[key] == value) for key, equals, value in wanted)
        ]
        return web.json_response({"items": found})

    async def _list_pods(self, request: web.Request) -> web.Response:
        found = [
            {
                "metadata": {"labels": {COORDINATOR_LABEL: job}},
                "status": {"phase": phases.pop(0) if phases else "Failed"},
            }
            for job, phases in self.coordinators.items()
        ]
        return web.json_response({"items": found})

    async def _pod(self, request: web.Request) -> web.Response:
        return web.json_response(pod(run="run-1"))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.deleted.append((name, await request.json()))
        if self.status >= 400:
            return web.json_response({"reason": "Forbidden", "message": "you may not"}, status=self.status)
        del self.jobs[name]
        return web.json_response({"status": "Success"})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Login]:
        app = web.Application()
        app.add_routes(
            [
                web.get(JOBS, self._list_jobs),
                web.get(PODS, self._list_pods),
                web.get(PODS + "/{name}", self._pod),
                web.delete(JOBS + "/{name}", self._delete),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "ml")
        finally:
            await runner.cleanup()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(cleanup, "LOOK_SECONDS", 0.01)
    monkeypatch.setenv("KFP_POD_NAME", "p-system-container-impl-1")
    found = Cluster()
    found.jobs = {
        "ours-1": {RUN_LABEL: "run-1", JOB_LABEL: "ours"},
        "ours-2": {RUN_LABEL: "run-1", JOB_LABEL: "ours"},
        "theirs-1": {RUN_LABEL: "run-2", JOB_LABEL: "theirs"},
        "something": {RUN_LABEL: "run-1"},  # a Job that some other step has made
        "no-pipeline-1": {JOB_LABEL: "no-pipeline"},
    }
    return found


def clean(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, run_id: str = "", wait_seconds: float = 0.0) -> int:
    """Runs the step, with the cluster served by a loop of this thread's own."""

    async def go() -> int:
        async with cluster.serve() as login:
            monkeypatch.setattr(cleanup, "log_in", lambda: login)
            return await asyncio.to_thread(cleanup_step, run_id, wait_seconds)

    return asyncio.run(go())


def test_only_jobs_with_the_runs_label_are_deleted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clean(cluster, monkeypatch) == 2
    assert set(cluster.jobs) == {"theirs-1", "something", "no-pipeline-1"}
    assert dict(cluster.deleted)["ours-1"] == {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "uid-ours-1"},
    }


def test_another_run_may_be_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clean(cluster, monkeypatch, run_id="run-2") == 1


def test_nothing_left_is_fine(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clean(cluster, monkeypatch, run_id="run-3") == 0


def test_what_a_coordinator_governs_is_left_to_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.coordinators = {"ours": ["Running"] * 1000}
    assert clean(cluster, monkeypatch, wait_seconds=0.1) == 0
    assert not cluster.deleted


def test_a_coordinator_that_ends_is_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.coordinators = {"ours": ["Running", "Running"]}
    assert clean(cluster, monkeypatch, wait_seconds=60) == 2


def test_a_refusal_is_red_with_its_reason(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.status = 400
    with pytest.raises(StepFailed, match="elastic_cleanup: you may not"):
        clean(cluster, monkeypatch)


@pytest.mark.parametrize("status", [404, 409])
def test_a_job_that_is_gone_or_another_by_now_is_no_failure(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    cluster.status = status
    assert clean(cluster, monkeypatch) == 0
    assert all(options["preconditions"] == {"uid": f"uid-{name}"} for name, options in cluster.deleted)


@pytest.mark.parametrize("kubeconfig", ["", "apiVersion: v1"])
def test_a_run_that_is_not_in_a_cluster_has_no_nodes_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kubeconfig: str
) -> None:
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    if kubeconfig:
        (tmp_path / "config").write_text(kubeconfig)
    assert cleanup_step("", 0.0) == 0
    assert "no nodes to end" in capsys.readouterr().out
    with pytest.raises(StepFailed, match="elastic_cleanup: "):
        cleanup_step("run-1", 0.0)
