"""What the API server says of ``manifests/``: a strict dry run of each overlay on its side."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster.kubectl import kubectl, made
from tests.support.manifests import KUSTOMIZATION, MANIFESTS, documents

OF_PROMETHEUS = Path(__file__).with_name("prometheus_operator.yaml")
CRD = "customresourcedefinition.apiextensions.k8s.io"
OF_ARGO = MANIFESTS / "argo"
"""Of kinds that Argo brings: see test_argo_accepted."""
FOLDERS = sorted(path.parent for path in MANIFESTS.rglob(KUSTOMIZATION) if not path.is_relative_to(OF_ARGO))


@pytest.fixture(scope="module")
def kinds_of_prometheus() -> Iterator[None]:
    """The kinds that the Prometheus operator brings, where they are not there."""
    there = kubectl("get", "customresourcedefinitions", "--output=name").split()
    kinds = [one for one in documents(OF_PROMETHEUS) if f"{CRD}/{one['metadata']['name']}" not in there]
    names = [f"{CRD}/{one['metadata']['name']}" for one in kinds]
    for one in kinds:
        kubectl("create", "--filename=-", stdin=yaml.safe_dump(one))
    for name in names:
        kubectl("wait", "--for=condition=Established", name, "--timeout=60s")
    yield
    for name in names:
        kubectl("delete", name)


def moved(given: Any, suffix: str) -> Any:
    """Returns objects in other namespaces than theirs, all of their mentions of one included."""
    match given:
        case dict():
            return {key: value + suffix if key == "namespace" else moved(value, suffix) for key, value in given.items()}
        case list():
            return [moved(one, suffix) for one in given]
    return given


@pytest.mark.usefixtures("kinds_of_prometheus")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_the_server_takes_each_overlay_as_it_is_written(folder: Path) -> None:
    rendered = [one for one in yaml.safe_load_all(kubectl("kustomize", str(folder))) if one is not None]
    # In new namespaces, and whoever owns what has none: the cluster may hold the overlay already.
    objects = moved(rendered, f"-{secrets.token_hex(4)}")
    spaces = sorted({one["metadata"].get("namespace", "default") for one in objects})
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--output=name", "--filename=-")
    ours = ("--field-manager=test", "--force-conflicts")
    with made("namespace", *spaces):
        taken = kubectl(*command, *ours, stdin=yaml.safe_dump_all(objects)).split()
    assert len(taken) == len(objects)


def test_another_namespace_takes_all_of_an_overlay_along(tmp_path: Path) -> None:
    there = os.path.relpath(MANIFESTS / "overlays" / "argo", tmp_path)  # kustomize takes no absolute path
    (tmp_path / KUSTOMIZATION).write_text(f"namespace: ours\nresources: [{there}]\n")
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path))))
    assert {one["metadata"]["namespace"] for one in objects} == {"ours"}
    subjects = [subject for one in objects for subject in one.get("subjects", ())]
    assert {subject["namespace"] for subject in subjects} == {"ours"}
