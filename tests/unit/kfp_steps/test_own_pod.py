"""A step knows its pod by the name that Kubeflow gives it, and says so where there is none."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from elastic_launcher.engines.kubernetes.leadership.bootstrap import own_pod_name
from elastic_launcher.kfp_steps import own_pod as module
from elastic_launcher.kfp_steps.own_pod import image_of, own_pod, run_of
from elastic_launcher.kube.api import ApiError
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError
from tests.support.kfp_bodies import pod

LONG = "a-pipeline-with-a-name-that-says-it-all-x7k2p-system-container-impl-1234567890"


def test_the_name_is_kubeflows_and_not_the_host_names() -> None:
    assert len(LONG) > 63
    assert own_pod_name({"KFP_POD_NAME": LONG, "HOSTNAME": LONG[:63]}) == LONG
    assert own_pod_name({"POD_NAME": "mine", "KFP_POD_NAME": LONG}) == "mine"
    assert own_pod_name({}) == socket.gethostname()


def read(monkeypatch: pytest.MonkeyPatch, status: int = 200) -> Any:
    """Reads the step's pod from a server that knows one of a long name."""
    monkeypatch.setenv("KFP_POD_NAME", LONG)

    async def get(request: web.Request) -> web.Response:
        if status == 200 and request.match_info["name"] == LONG:
            return web.json_response(pod())
        return web.json_response({"reason": "Refused", "message": "refused"}, status=status)

    async def go() -> Any:
        app = web.Application()
        app.add_routes([web.get("/api/v1/namespaces/ml/pods/{name}", get)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            login = Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "ml")
            return await asyncio.to_thread(module.own_pod, login)
        finally:
            await runner.cleanup()

    return asyncio.run(go())


def test_a_pod_says_its_run_and_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch)
    assert (run_of(found), image_of(found)) == ("run-1", "ml/train:1")


def test_a_pod_that_is_not_there_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match='on a machine of your own give engine="local"'):
        read(monkeypatch, status=404)


def test_a_pod_that_may_not_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="can't be read: refused"):
        read(monkeypatch, status=400)


def test_a_server_that_is_away_is_no_mistake_of_the_author(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "insist", lambda call: call())
    with pytest.raises(ApiError, match="refused"):
        read(monkeypatch, status=503)


def test_without_a_cluster_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ConfigError, match="no cluster is known"):
        own_pod()
