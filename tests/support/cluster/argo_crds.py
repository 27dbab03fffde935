"""Argo's published kinds, whole, with all their fields. They are no part of this project: ``ARGO_CRDS`` says where.

Where nobody says so and they are not beside the project, as in a clean clone, what needs them is skipped, and pytest
tells how many tests that are and why: nothing in the clone could mend it. Whoever names a folder means it: then it has
to hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.cluster.kubectl import answers, kubectl
from tests.support.launches import until
from tests.support.places import ROOT

GIVEN = os.environ.get("ARGO_CRDS", "")
CRDS = Path(GIVEN or ROOT.parent / "shared" / "crds" / "argo-workflows")
NAMES = ("workflows", "workflowtemplates", "clusterworkflowtemplates", "cronworkflows")
SERVED_WITHIN = 60.0
"""Seconds: a kind that was made is refused for a moment, until its storage is there."""
_SCHEMAS = "/openapi/v3/apis/argoproj.io/v1alpha1"
"""What kubectl reads before it hands on anything strictly: megabytes, which a busy server takes its time to make."""
_DELETED = "--output=jsonpath={.metadata.deletionTimestamp}"
_FIELDS = "--output=jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties}"


def crd_file(plural: str) -> Path:
    """Returns where a kind's definition is; without it the test is skipped, or fails where a folder was named."""
    found = CRDS / f"argoproj.io_{plural}.yaml"
    if not found.is_file():
        _not_here(f"{found} is not there: ARGO_CRDS names the folder of Argo's CRDs")
    return found


@contextmanager
def argo_known() -> Iterator[None]:
    """Has the cluster know Argo's kinds meanwhile, unless it does anyway."""
    files = {f"crd/{name}.argoproj.io": crd_file(name) for name in NAMES}
    made = [name for name in files if not _is_there(name)]
    try:
        for name in made:
            kubectl("create", "--filename", str(files[name]))  # too large to be applied from the client's side
            kind = name.removeprefix("crd/")
            until(partial(answers, "get", kind, "--all-namespaces"), f"{kind} is served", SERVED_WITHIN)
        until(partial(answers, "get", "--raw", _SCHEMAS), "their schemas are served", SERVED_WITHIN)
        yield
    finally:
        _forget(made)


def _is_there(name: str) -> bool:
    """Returns whether a kind is known, with all its fields; one that another test has just deleted is waited for."""
    if kubectl("get", name, "--ignore-not-found", _DELETED):
        kubectl("wait", "--for=delete", name, "--timeout=60s")
    if not kubectl("get", name, "--ignore-not-found", "--output=name"):
        return False
    if not kubectl("get", name, _FIELDS):
        _not_here(f"the cluster's {name} is Argo's minimal one, which takes any field")
    return True


def _forget(names: Sequence[str]) -> None:
    for name in names:
        kubectl("delete", name, "--ignore-not-found")


def _not_here(why: str) -> NoReturn:
    if GIVEN:
        pytest.fail(why)
    pytest.skip(why)
