"""What the API server says of ``manifests/``: a strict dry run of each overlay on its side."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.manifests import KUSTOMIZATION, MANIFESTS

POD_MONITORS = Path(__file__).with_name("pod_monitors.yaml")
OF_ARGO = MANIFESTS / "argo"
"""Of kinds that Argo brings, which the cluster does not have."""
FOLDERS = sorted(path.parent for path in MANIFESTS.rglob(KUSTOMIZATION) if not path.is_relative_to(OF_ARGO))


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Returns what kubectl printed; what it refuses fails the test."""
    done = subprocess.run(("kubectl", *arguments), input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def made(kind: str, *names: str) -> Iterator[None]:
    """Makes what is not there of some objects that need a name only; removes that at the end."""
    there = kubectl("get", kind, "--output=name").split()
    missing = [name for name in names if f"{kind}/{name}" not in there]
    try:
        for name in missing:
            kubectl("create", kind, name)
        yield
    finally:
        for name in missing:
            kubectl("delete", kind, name)


@pytest.fixture(scope="module")
def pod_monitors() -> Iterator[None]:
    """The kind that the Prometheus operator brings, where it is not there."""
    name = "customresourcedefinition.apiextensions.k8s.io/podmonitors.monitoring.coreos.com"
    there = name in kubectl("get", "customresourcedefinitions", "--output=name").split()
    if not there:
        kubectl("create", "--filename", str(POD_MONITORS))
        kubectl("wait", "--for=condition=Established", name, "--timeout=60s")
    yield
    if not there:
        kubectl("delete", name)


@pytest.mark.usefixtures("pod_monitors")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_the_server_takes_each_overlay_as_it_is_written(folder: Path) -> None:
    rendered = kubectl("kustomize", str(folder))
    objects = [one for one in yaml.safe_load_all(rendered) if one is not None]
    spaces = sorted({one["metadata"].get("namespace", "default") for one in objects})
    with made("namespace", *spaces):
        command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--field-manager=test")
        taken = kubectl(*command, "--output=name", "--filename=-", stdin=rendered).split()
    assert len(taken) == len(objects)


def test_another_namespace_takes_all_of_an_overlay_along(tmp_path: Path) -> None:
    there = os.path.relpath(MANIFESTS / "overlays" / "argo", tmp_path)  # kustomize takes no absolute path
    (tmp_path / KUSTOMIZATION).write_text(f"namespace: ours\nresources: [{there}]\n")
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path))))
    assert {one["metadata"]["namespace"] for one in objects} == {"ours"}
    subjects = [subject for one in objects for subject in one.get("subjects", ())]
    assert {subject["namespace"] for subject in subjects} == {"ours"}
