"""What commands name is found: files, ConfigMaps of a namespace, and the history beside the hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError
from elastic_launcher.quota.cluster import commands
from elastic_launcher.quota.cluster.serve import Served
from elastic_launcher.quota.history import lines_of
from elastic_launcher.quota.rounds.round import Change
from tests.support.fake_cluster import FakeCluster

HINTS = Reference("quota", "gpu-hints")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """Gives what was to be served, by a login to namespace ``quota``."""
    found: list[Served] = []

    async def serve(_login: Login, served: Served, _say: Callable[[str], None], stop: asyncio.Event) -> None:
        assert not stop.is_set()
        found.append(served)

    monkeypatch.setattr(commands, "serve", serve)
    monkeypatch.setattr(commands, "log_in", lambda: Login("http://nowhere", "quota"))
    return found


@pytest.mark.parametrize(
    ("projects", "hints", "namespaces", "wanted"),
    [
        ("p.yaml", "configmap/gpu-hints", [], Served(HINTS, Path("p.yaml"))),
        ("configmap/p", "configmap/gpu-hints", [], Served(HINTS, Reference("quota", "p"))),
        ("configmap/p", "configmap/gpu-hints", [], Served(HINTS, Reference("quota", "p"), metrics_port=18502)),
        ("configmap/a/p", "configmap/b/h", ["c", "d"], Served(Reference("b", "h"), Reference("a", "p"), ("c", "d"))),
    ],
)
def test_objects_without_a_namespace_are_in_the_controllers_own(
    projects: str, hints: str, namespaces: list[str], wanted: Served, served: list[Served]
) -> None:
    commands.serve_in_cluster(projects, hints, namespaces, wanted.metrics_port, print)
    assert served == [wanted]


def test_hints_of_a_cluster_are_in_a_configmap(served: list[Served]) -> None:
    with pytest.raises(ConfigError, match=r"--hints hints.json is no ConfigMap: it must be configmap/NAME"):
        commands.serve_in_cluster("p.yaml", "hints.json", [], None, print)
    assert served == []


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (None, []),
        ({}, []),
        ({"history.jsonl": lines_of([Change(job, "nlp", 0, 1, "free", "") for job in "ab"], 1.0)}, ["a", "b"]),
    ],
)
def test_the_history_beside_the_hints_is_read(
    data: dict[str, str] | None, rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[Any]:
        cluster = FakeCluster()
        if data is not None:
            metadata = {"name": "gpu-hints-history", "namespace": "quota"}
            await cluster.put("configmaps", {"metadata": metadata, "data": data})
        async with cluster.serve() as login, asyncio.timeout(30):
            monkeypatch.setattr(commands, "log_in", lambda: login)
            return await asyncio.to_thread(commands.read_history, "configmap/gpu-hints")

    assert [row["job"] for row in asyncio.run(run())] == rows
