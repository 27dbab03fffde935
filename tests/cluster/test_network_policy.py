"""What the NetworkPolicy keeps out, where the cluster's network enforces it at all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import Places
from tests.support.cluster import pods
from tests.support.manifests import MANIFESTS, objects

pytestmark = pytest.mark.machine

PLACES = Places.default()
PORT = 8000
SERVER = f"""
import socket
listener = socket.create_server(("", {PORT}))
while True:
    listener.accept()[0].close()
"""
CLIENT = """
import socket, sys, time
address, wanted = sys.argv[1], sys.argv[2] == "open"
end = time.monotonic() + 30
while time.monotonic() < end:  # a network takes a moment until it does what a policy says
    try:
        socket.create_connection((address, int(sys.argv[3])), 2).close()
        found = True
    except OSError:
        found = False
    if found == wanted:
        sys.exit(0)
    time.sleep(0.2)
sys.exit(1)
"""
NODE = {JOB_LABEL: "digits-x"}
DENY_ALL: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def kubectl() -> Kubectl:
    return Kubectl(PLACES, cluster.running(PLACES).programs)


@pytest.fixture
def space(kubectl: Kubectl) -> Iterator[str]:
    with pods.namespace(kubectl, "policy") as name:
        yield name


def becomes(kubectl: Kubectl, space: str, address: str, wanted: str, labels: dict[str, str]) -> bool:
    """Returns whether the server's port is, or soon becomes, open or shut for a pod with such labels."""
    name = f"client-{next(NUMBERS)}"
    pod = pods.python_pod(space, name, "-c", CLIENT, address, wanted, str(PORT))
    pod["metadata"]["labels"] |= labels
    kubectl.apply(pod)
    return pods.wait(kubectl, space, name, "{.status.phase}", ("Succeeded", "Failed")) == "Succeeded"


def test_nodes_are_reached_by_nodes_alone(kubectl: Kubectl, space: str) -> None:
    server = pods.python_pod(space, "server", "-c", SERVER)
    server["metadata"]["labels"] |= NODE
    kubectl.apply(server)
    pods.wait(kubectl, space, "server", "{.status.phase}", ("Running",))
    address = kubectl("get", "pod", "server", f"--namespace={space}", "--output=jsonpath={.status.podIP}").strip()
    assert becomes(kubectl, space, address, "open", labels={})

    kubectl.apply(DENY_ALL | {"metadata": {"name": "deny-all", "namespace": space}})
    enforced = becomes(kubectl, space, address, "shut", labels={})
    kubectl("delete", "networkpolicy", "deny-all", f"--namespace={space}")

    ours = objects(MANIFESTS / "network-policy", "NetworkPolicy")
    kubectl.apply(*(one | {"metadata": one["metadata"] | {"namespace": space}} for one in ours))
    names = "--output=jsonpath={.items[*].metadata.name}"
    taken = kubectl("get", "networkpolicies", f"--namespace={space}", names).split()
    assert sorted(taken) == sorted(one["metadata"]["name"] for one in ours)
    if enforced:
        assert becomes(kubectl, space, address, "open", labels=NODE)
        assert becomes(kubectl, space, address, "shut", labels={})
    else:
        warnings.warn("NetworkPolicy: not enforced here, a pod got through one that denies everything", stacklevel=1)
