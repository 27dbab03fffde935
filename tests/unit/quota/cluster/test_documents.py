"""Where a controller reads its projects document, and that no one writes hints that does not lead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.hints.configmap_store import ConfigMapPlace
from elastic_launcher.hints.reference import Reference
from elastic_launcher.hints.stores import FilePlace
from elastic_launcher.kube.api import Api
from elastic_launcher.quota.cluster.documents import LedPlace, NotLeading, ProjectsConfigMap
from tests.support.fake_cluster import FakeCluster

PROJECTS, HINTS = Reference("quota", "gpu-projects"), Reference("quota", "gpu-hints")


def configmap(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "quota"}, "data": data}


def read(document: ProjectsConfigMap) -> str:
    """Returns the document, or why there is none."""
    try:
        return document.read_bytes().decode()
    except OSError as error:
        return str(error)


def test_the_document_in_a_configmap_is_followed() -> None:
    async def run() -> None:
        cluster, news = FakeCluster(), asyncio.Event()
        document = ProjectsConfigMap(PROJECTS, news.set)
        assert read(document) == "it was not read yet"
        async with cluster.serve() as login, Api(login) as api, asyncio.timeout(30):
            following = asyncio.create_task(document.follow(api))
            seen = []
            for data in (None, {"projects.yaml": "a"}, {"other": "b"}, {"projects.yaml": "c"}):
                if data is not None:
                    await cluster.put("configmaps", configmap("gpu-projects", data))
                await news.wait()
                news.clear()
                seen.append(read(document))
            await cluster.delete("configmaps", "gpu-projects", "quota")
            await news.wait()
            following.cancel()
            assert [*seen, read(document)] == ["it is not there", "a", "it has no such key", "c", "it is not there"]

    asyncio.run(run())
    assert str(ProjectsConfigMap(PROJECTS, lambda: None)) == "ConfigMap quota/gpu-projects, key projects.yaml"


def test_who_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    leads = [True, False]
    place = LedPlace(FilePlace(path), lambda: leads.pop(0))
    place.edit(lambda _: "first")
    with pytest.raises(NotLeading, match="another controller leads"):
        place.edit(lambda _: "second")
    assert (place.read(), place.name) == (b"first", str(path))


def test_of_two_that_write_at_once_the_second_decides_by_what_the_first_has_written() -> None:
    async def run() -> None:
        cluster = FakeCluster()
        await cluster.put("configmaps", configmap("gpu-hints", {"hints.json": "0"}))
        async with cluster.serve() as login, asyncio.timeout(30):
            first, second = (LedPlace(ConfigMapPlace(HINTS, login), lambda: True) for _ in range(2))
            read_by_first: list[str | bytes] = []

            def change(text: str | bytes) -> str:
                read_by_first.append(text)
                if len(read_by_first) == 1:  # the other one writes between this one's reading and its writing
                    edit_elsewhere(second)
                return added("first")(text)

            await asyncio.to_thread(first.edit, change)
            found = cluster.get("configmaps", "gpu-hints", "quota")
            assert found is not None and found["data"]["hints.json"] == "0, second, first"
            assert read_by_first == ["0", "0, second"]

    asyncio.run(run())


def test_a_leader_that_was_replaced_while_it_decided_writes_nothing() -> None:
    async def run() -> None:
        cluster = FakeCluster()
        await cluster.put("configmaps", configmap("gpu-hints", {"hints.json": "0"}))
        async with cluster.serve() as login, asyncio.timeout(30):
            leads = True
            first = LedPlace(ConfigMapPlace(HINTS, login), lambda: leads)
            second = LedPlace(ConfigMapPlace(HINTS, login), lambda: True)

            def change(text: str | bytes) -> str:
                nonlocal leads
                leads = False
                edit_elsewhere(second)
                return added("first")(text)

            with pytest.raises(NotLeading):
                await asyncio.to_thread(first.edit, change)
            found = cluster.get("configmaps", "gpu-hints", "quota")
            assert found is not None and found["data"]["hints.json"] == "0, second"

    asyncio.run(run())


def edit_elsewhere(place: LedPlace) -> None:
    """Has another process's controller write meanwhile."""
    other = threading.Thread(target=place.edit, args=[added("second")])
    other.start()
    other.join()


def added(name: str) -> Callable[[str | bytes], str]:
    return lambda text: f"{text if isinstance(text, str) else text.decode()}, {name}"
