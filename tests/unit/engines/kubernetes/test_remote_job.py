"""A job of a cluster, by its name; and its logs, of pods that can be read and pods that can't."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from aiohttp import web

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL, NODE_LABEL, JobName
from elastic_launcher.engines.kubernetes.objects.service import STOP
from elastic_launcher.engines.kubernetes.remote_job import ClusterJob, cluster_job
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.options import ConfigError

SERVICE = {
    "metadata": {"namespace": "ml", "name": "digits-x", "labels": {JOB_LABEL: "digits-x"}, "resourceVersion": "1"},
    "spec": {},
}
MAIN = "kubectl.kubernetes.io/default-container"


def pod(node: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"digits-x-{node}", "labels": {NODE_LABEL: str(node)}, "annotations": {MAIN: "node"}},
        "spec": {"containers": [{"name": "proxy"}, {"name": "node"}]},
        "status": {"containerStatuses": [{"name": "node", "started": True, "state": {"running": {}}}]},
    }


class Pods:
    """Three nodes, of which the machine of the second does not answer."""

    async def request(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {"items": [pod(node) for node in (1, 2, 3)]}

    async def stream(self, path: str, query: dict[str, str]) -> AsyncGenerator[bytes, None]:
        assert query["container"] == "node"
        if "digits-x-2/" in path:
            raise ApiError(500, "InternalError", "no route to host")
        yield b"[local rank 0] hello\n"


def test_a_pod_that_can_not_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    job = ClusterJob(cast(Api, Pods()), SERVICE)
    assert asyncio.run(job.save_logs(tmp_path, follow=False)) == [
        "the log of pod digits-x-2 can't be read: no route to host"
    ]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"1-0.log": "hello\n", "3-0.log": "hello\n"}


def test_a_user_without_a_name_stops_a_job_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Services:
        """Keeps what is written."""

        async def request(self, method: str, path: str, body: dict[str, Any], **more: Any) -> None:
            noted.update(body["metadata"]["annotations"])

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    noted: dict[str, str] = {}
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    asyncio.run(ClusterJob(cast(Api, Services()), SERVICE).ask_to_stop())
    assert noted == {STOP: f"elastic-launcher stop, by user {os.getuid()}"}


def service(name: str, owner: str) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": name, "labels": {JOB_LABEL: name}, "resourceVersion": "1"}
    return {"metadata": {**metadata, "ownerReferences": [{"name": owner}]}, "spec": {}}


JOBS = [service("digits-a1", "digits"), service("digits-b2", "digits-again"), service("faces-c3", "faces")]
AT = "http://127.0.0.1:"


async def asked_for(wanted: JobName, kubeconfig: Path) -> str:
    """Returns the job that a name means where namespace ml has three, and no other namespace is there but team."""

    async def services(request: web.Request) -> web.Response:
        return web.json_response({"items": JOBS if request.match_info["namespace"] == "ml" else []})

    async def namespace(request: web.Request) -> web.Response:
        there = request.match_info["namespace"] in ("ml", "team")
        return web.json_response({"message": "not found"}, status=200 if there else 404)

    app = web.Application()
    of_one = "/api/v1/namespaces/{namespace}"
    app.add_routes([web.get(of_one, namespace), web.get(f"{of_one}/services", services)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": f"{AT}{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(yaml.safe_dump(parts))
    try:
        async with cluster_job(wanted) as job:
            return job.name
    finally:
        await runner.cleanup()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize(
    ("name", "found"),
    [("digits", "digits-a1"), ("digits-b2", "digits-b2"), ("digits-b", "digits-b2"), ("faces", "faces-c3")],
)
def test_a_job_is_its_id_or_its_owner_or_a_beginning(name: str, found: str, kubeconfig: Path) -> None:
    for namespace in ("ml", ""):
        assert asyncio.run(asked_for(JobName(namespace, name), kubeconfig)) == f"ml/{found}"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (JobName("ml", "x"), "namespace ml has no job of the name x; there: digits-a1, digits-b2, faces-c3$"),
        (JobName("", "x"), "there: digits-a1, digits-b2, faces-c3; for another namespace: job/NAMESPACE/x$"),
        (JobName("ml", "dig"), "namespace ml has 2 jobs of the name dig; there: digits-a1, digits-b2$"),
        (JobName("team", "x"), "namespace team has no job of the name x; there: none$"),
        (JobName("tema", "x"), f"^there is no namespace tema at {AT}"),
    ],
)
def test_a_name_that_means_no_job_is_told_with_those_that_are_there(
    wanted: JobName, said: str, kubeconfig: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        asyncio.run(asked_for(wanted, kubeconfig))
