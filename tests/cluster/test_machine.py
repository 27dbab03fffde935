"""What the other tests rely on in the machine's own cluster. ``make cluster`` has to have started it."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machine import cluster, volumes
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.lan import BRIDGE
from tests.cluster.machine.node import CGROUPS, REPOSITORY
from tests.cluster.machine.places import API_SERVICE, GPU, MOST_NODES, NodePlaces, Places
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster import pods
from tests.support.cluster.command import act

pytestmark = pytest.mark.machine

PLACES = Places.default()
PORT = 8080
SILENCE = 3.0  # seconds; a reset, a refusal or an end of file would come in a millisecond
SECOND = 1
# Sends a line to whoever connects and then nothing, so that a reader sees what becomes of the connection.
SERVER = f"""
import socket
kept = []
with socket.create_server(("", {PORT})) as server:
    while True:
        kept.append(server.accept()[0])
        kept[-1].sendall(b"here\\n")
"""
# Until kube-proxy has heard of a Service, its connections are refused, or lead nowhere for good: each try is a new one.
CLIENT = """
import socket, time
for service in {services}:
    while True:
        try:
            socket.create_connection(service, timeout=3).close()
            break
        except (ConnectionRefusedError, TimeoutError) as error:
            print(service, error, flush=True)
            time.sleep(0.2)
"""
PHASE = "{.status.phase}"
READY = '{.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[*].restartCount}'


@pytest.fixture(scope="module")
def kubectl() -> Kubectl:
    return Kubectl(PLACES, cluster.running(PLACES).programs)


@pytest.fixture
def space(kubectl: Kubectl) -> Iterator[str]:
    with pods.namespace(kubectl, "machine") as name:
        yield name


def serve(kubectl: Kubectl, space: str, name: str, node: int) -> str:
    """Starts a server in a pod that is started again when its node is, and returns its address."""
    pod = pods.python_pod(space, name, "-c", SERVER, node=node)
    pod["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0}
    kubectl.apply(pod)
    pods.wait(kubectl, space, name, READY, ["True 0"])
    address = kubectl("get", "pod", name, f"--namespace={space}", "-o", "jsonpath={.status.podIP}")
    assert_answers(address)
    return address


def assert_answers(address: str) -> None:
    connect(address).close()


def connect(address: str) -> socket.socket:
    connection = socket.create_connection((address, PORT), timeout=30)
    assert connection.recv(100) == b"here\n"
    connection.settimeout(SILENCE)
    return connection


@pytest.fixture
def second_back() -> Iterator[None]:
    yield
    act("node", str(SECOND), "up")


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_restricted_pod_runs_torch(kubectl: Kubectl, space: str, node: int) -> None:
    code = "import os, torch, elastic_launcher; print(os.getuid(), torch.ones(2).sum().item())"
    kubectl.apply(pods.python_pod(space, "torch", "-c", code, node=node, gpus=1))
    assert pods.wait(kubectl, space, "torch", PHASE, ["Succeeded", "Failed"]) == "Succeeded"
    assert kubectl("logs", "torch", f"--namespace={space}") == f"{pods.UID} 2.0\n"


def test_pods_do_not_write_through_the_volumes(kubectl: Kubectl, space: str) -> None:
    code = f"import os, errno; assert os.statvfs({str(REPOSITORY)!r}).f_flag & os.ST_RDONLY"
    kubectl.apply(pods.python_pod(space, "reader", "-c", code))
    assert pods.wait(kubectl, space, "reader", PHASE, ["Succeeded", "Failed"]) == "Succeeded"


@pytest.mark.thorough
def test_what_a_pod_writes_is_read_on_the_other_node(kubectl: Kubectl, space: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)  # pods have users of their own
    kubectl.apply(*volumes.volumes(space, [tmp_path], writable=True))
    for node, code in enumerate(("write_text('kept')", "read_text()")):
        code = f"import pathlib; assert pathlib.Path({str(tmp_path / 'file')!r}).{code}"
        kubectl.apply(pods.python_pod(space, f"on-{node}", "-c", code, node=node, writable=[tmp_path]))
        assert pods.wait(kubectl, space, f"on-{node}", PHASE, ["Succeeded", "Failed"]) == "Succeeded"
    assert (tmp_path / "file").read_text() == "kept"


def test_an_unrestricted_pod_is_refused(kubectl: Kubectl, space: str) -> None:
    pod = pods.python_pod(space, "host", "-c", "")
    pod["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/usr"}})
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        kubectl.apply(pod)


@pytest.mark.thorough
@pytest.mark.parametrize("node", [0, 1])
def test_pods_reach_each_other_and_the_api_through_services(kubectl: Kubectl, space: str, node: int) -> None:
    serve(kubectl, space, "server", node=SECOND)
    kubectl("expose", "pod", "server", f"--namespace={space}", f"--port={PORT}")
    service = kubectl("get", "service", "server", f"--namespace={space}", "-o", "jsonpath={.spec.clusterIP}")
    code = CLIENT.format(services=[(service, PORT), (API_SERVICE, 443)])
    kubectl.apply(pods.python_pod(space, "client", "-c", code, node=node))
    assert pods.wait(kubectl, space, "client", PHASE, ["Succeeded", "Failed"]) == "Succeeded"


def test_names_are_refused_at_once(kubectl: Kubectl, space: str) -> None:
    name = "kubernetes.default.svc"
    code = f"import socket\ntry: socket.gethostbyname({name!r})\nexcept socket.gaierror as e: print(e.errno)"
    kubectl.apply(pods.python_pod(space, "names", "-c", code))
    assert pods.wait(kubectl, space, "names", PHASE, ["Succeeded", "Failed"]) == "Succeeded"
    assert kubectl("logs", "names", f"--namespace={space}") == f"{socket.EAI_AGAIN}\n"


def test_gpus_are_counted(kubectl: Kubectl, space: str) -> None:
    kubectl.apply(pods.python_pod(space, "greedy", "-c", "", gpus=cluster.running(PLACES).gpus + 1))
    why = '{.status.conditions[?(@.type=="PodScheduled")].reason}'
    pods.wait(kubectl, space, "greedy", why, ["Unschedulable"])
    said = kubectl("get", "pod", "greedy", f"--namespace={space}", "-o", "jsonpath={.status.conditions[*].message}")
    assert "2 Insufficient nvidia.com/gpu" in said


@pytest.mark.thorough
def test_quotas_and_limits_are_enforced(kubectl: Kubectl, space: str) -> None:
    metadata = {"name": "most", "namespace": space}
    limit = {"type": "Container", "max": {"memory": "1Gi"}, "default": {"memory": "1Gi"}}
    quota = {"hard": {f"requests.{GPU}": "1"}}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limit]}},
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": quota},
    )
    kubectl("wait", "--for=jsonpath={.status.hard}", "resourcequota", "most", f"--namespace={space}")
    with pytest.raises(ClusterError, match="exceeded quota: most"):
        kubectl.apply(pods.python_pod(space, "two", "-c", "", gpus=2))
    large = pods.python_pod(space, "large", "-c", "")
    large["spec"]["containers"][0]["resources"] = {"limits": {"memory": "2Gi"}}
    with pytest.raises(ClusterError, match="maximum memory usage per Container is 1Gi"):
        kubectl.apply(large)


@pytest.mark.thorough
def test_a_cut_is_silent_and_is_mended(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    with connect(address) as connection:
        act("node", str(SECOND), "cut")
        try:
            with pytest.raises(TimeoutError):
                connection.recv(1)
            with pytest.raises(TimeoutError):
                socket.create_connection((address, PORT), timeout=SILENCE)
        finally:
            act("node", str(SECOND), "mend")
    assert_answers(address)


@pytest.mark.thorough
@pytest.mark.usefixtures("second_back")
def test_a_node_that_vanishes_says_nothing_and_comes_back_with_its_pods(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    with connect(address) as connection:
        act("node", str(SECOND), "vanish")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        with pytest.raises(TimeoutError):
            socket.create_connection((address, PORT), timeout=SILENCE)
    act("node", str(SECOND), "up")
    pods.wait(kubectl, space, "server", READY, ["True 1"])


@pytest.mark.thorough
def test_pods_run_on_while_their_kubelet_is_stopped(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    act("node", str(SECOND), "kubelet", "stop")
    try:
        assert_answers(address)
    finally:
        act("node", str(SECOND), "kubelet", "cont")
    kubectl("exec", "server", f"--namespace={space}", "--", "/bin/true")


@pytest.mark.thorough
def test_the_kubelet_is_killed_and_started(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    act("node", str(SECOND), "kubelet", "kill")
    act("node", str(SECOND), "kubelet", "start")
    act("node", str(SECOND), "up")
    assert_answers(address)
    pods.wait(kubectl, space, "server", READY, ["True 0"])


@pytest.mark.thorough
def test_the_api_server_is_restarted(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    act("apiserver", "restart")
    assert_answers(address)
    pods.wait(kubectl, space, "server", READY, ["True 0"])


def test_the_audit_log_tells_who_asked_for_what(kubectl: Kubectl, space: str) -> None:
    kubectl(
        "get",
        "configmaps",
        f"--namespace={space}",
        "--as=system:serviceaccount:ml:someone",
        "--as-group=system:masters",
    )
    asked = [json.loads(line) for line in PLACES.audit_log.read_text().splitlines() if space in line]
    verbs = {(r["verb"], r["objectRef"]["resource"], r.get("impersonatedUser", {}).get("username")) for r in asked}
    assert ("list", "configmaps", "system:serviceaccount:ml:someone") in verbs


def test_up_again_restarts_nothing(kubectl: Kubectl, space: str) -> None:
    address = serve(kubectl, space, "server", node=SECOND)
    with connect(address) as connection:
        act("up")
        with pytest.raises(TimeoutError):
            connection.recv(1)


def left() -> list[str]:
    """Returns what there is of a cluster on this machine."""
    state = str(PLACES.state)
    commands = [path.read_bytes().replace(b"\0", b" ").decode() for path in Path("/proc").glob("[0-9]*/cmdline")]
    found = [command for command in commands if state in command or "containerd-shim" in command]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if state in line]
    links = {BRIDGE, *(NodePlaces(PLACES, index).link for index in range(MOST_NODES))}
    found += [path.name for path in Path("/sys/class/net").iterdir() if path.name in links]
    found += [str(path) for link in links for path in [*CGROUPS.glob(link), *CGROUPS.glob(f"*/{link}")]]
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    found += [route for route in routes if route.startswith(("10.244.", "10.245."))]
    return found + ([state] if PLACES.state.exists() else [])


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # a cluster's whole start, where the machine may be busy with other things
def test_nothing_is_left_when_it_is_taken_down() -> None:
    assert left()
    settings = cluster.running(PLACES)
    kernel = [path.read_text() for path in cluster.SYSCTLS]
    saved = json.loads((PLACES.state / "sysctls.json").read_text())
    asked = PLACES.audit_log.read_bytes()  # test_used_rights.py looks through what all tests have asked for
    act("down")
    act("down")  # again: there is nothing to take down
    try:
        assert left() == []
        assert [path.read_text() for path in cluster.SYSCTLS] == list(saved.values())
    finally:
        given = {"nodes": settings.nodes, "gpus": settings.gpus, "grace": settings.grace}
        act("up", *(f"--{name}={value}" for name, value in given.items() if value is not None))
        PLACES.audit_log.with_name("audit-before.log").write_bytes(asked)
    assert [path.read_text() for path in cluster.SYSCTLS] == kernel
