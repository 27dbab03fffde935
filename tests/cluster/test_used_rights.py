"""Every right that ``manifests/`` grants to launchers and to the quota controller is one that they use.

It needs the machine, whose audit log it reads, and all tests of this folder to have run since the cluster began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster.stage import PLACES
from tests.support.manifests import MANIFESTS, objects, rights

ACCOUNT = "system:serviceaccount:"
LAUNCHERS = ("launcher", "elastic-launcher", "job")
"""What tests call the service accounts of launchers, or of what plays one."""
CONTROLLER = "elastic-launcher-quota"
"""What the account and the Roles of the quota controller are called."""
FOR_ARGO = "elastic-launcher-argo-executor"
"""What Argo's own container in a step's pod needs."""


def requests() -> Iterator[dict[str, Any]]:
    """Yields what service accounts asked for, the files that the log was moved to included."""
    for path in PLACES.audit_log.parent.glob("audit*.log"):
        with open(path, encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if ACCOUNT in line and line.endswith("\n"))


def used(*accounts: str) -> set[tuple[str, str, str]]:
    """Returns what service accounts of some names were let do: group, resource, verb."""
    found = set()
    for one in requests():
        about, who = one.get("objectRef", {}), one["user"]["username"]
        allowed = one.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
        if allowed and who.startswith(ACCOUNT) and who.rpartition(":")[2] in accounts:
            found.add((about.get("apiGroup", ""), about.get("resource", ""), one["verb"]))
    return found


@pytest.mark.machine
@pytest.mark.thorough
def test_launchers_use_every_verb_that_they_are_granted() -> None:
    overlays = MANIFESTS / "overlays"
    roles = [
        *(role for name in ("argo", "hints") for role in objects(overlays / name, "Role")),
        *objects(overlays / "node-notice", "ClusterRole"),
    ]
    granted = rights([role for role in roles if role["metadata"]["name"] != FOR_ARGO])
    unused = sorted(granted - used(*LAUNCHERS))
    assert not unused, "no test has made a launcher use these; if not all of tests/cluster has run, run it"


@pytest.mark.machine
@pytest.mark.thorough
def test_the_quota_controller_uses_every_verb_that_it_is_granted() -> None:
    roles = objects(MANIFESTS / "overlays" / "quota-kueue", "Role", "ClusterRole")
    own = [role for role in roles if role["metadata"]["name"] in (CONTROLLER, f"{CONTROLLER}-kueue")]
    unused = sorted(rights(own) - used(CONTROLLER))
    assert not unused, "no test has made the controller use these; if not all of tests/cluster has run, run it"
