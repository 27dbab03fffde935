"""The pod that a launcher runs in, by whatever its name and its host name are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elastic_launcher.engines.kubernetes.leadership import bootstrap
from elastic_launcher.engines.kubernetes.leadership.bootstrap import inspect_cluster
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError

LONG = "nightly-training-of-the-digits-run-7h2kx-system-container-impl-1234567890"
ADDRESS = "127.0.0.1"


def pod(name: str, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name},
        "spec": {"containers": [{"name": "main", "image": "i"}], **spec},
        "status": {"phase": phase, "podIP": ADDRESS},
    }


class Cluster:
    """An API with these pods, all at the launcher's address, whose reviews allow everything."""

    login = Login(f"http://{ADDRESS}:9", "ml")

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = pods

    async def request(self, method: str, path: str, body: Any = None, query: Any = None) -> dict[str, Any]:
        if method == "POST":
            return {"status": {"allowed": True}}
        name = path.partition("/pods/")[2]
        if not name:
            assert query == {"fieldSelector": f"status.podIP={ADDRESS}"}
            return {"items": list(self.pods)}
        for one in self.pods:
            if one["metadata"]["name"] == name:
                return one
        raise ApiError(404, "NotFound", f"there is no {name}")


def found_by(host: str, *pods: dict[str, Any]) -> str:
    async def steps() -> str:
        return str((await inspect_cluster(cast(Api, Cluster(*pods)), "digits")).pod["metadata"]["name"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap.socket, "gethostname", lambda: host)
        return asyncio.run(steps())


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POD_NAME", "KFP_POD_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("host", "pods"),
    [
        ("digits-8bcx5", [pod("digits-8bcx5")]),
        (LONG[:63], [pod(LONG), pod("other")]),
        (LONG[:63], [pod(LONG), pod(LONG + "-before", phase="Failed")]),
        ("train-0", [pod("train-0-8bcx5")]),
        ("trainer", [pod("train-8bcx5", hostname="trainer")]),
    ],
)
def test_it_is_found_by_its_host_name_however_that_was_made(host: str, pods: list[dict[str, Any]]) -> None:
    assert found_by(host, *pods) == pods[0]["metadata"]["name"]


@pytest.mark.parametrize("variable", ["POD_NAME", "KFP_POD_NAME"])
def test_it_is_found_by_what_names_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, LONG)
    assert found_by("machine-1", pod("other"), pod(LONG)) == LONG


def test_where_it_has_no_address_no_pod_is_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "login", Login("http://[::1]:9", "ml"))
    with pytest.raises(ConfigError, match="set POD_NAME to its pod's name"):
        found_by(LONG[:63], pod(LONG))


@pytest.mark.parametrize("pods", [[], [pod("other")], [pod(LONG + "-a"), pod(LONG + "-b")]])
def test_one_that_is_not_found_is_asked_for(pods: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="set POD_NAME to its pod's name"):
        found_by(LONG[:63], *pods)
