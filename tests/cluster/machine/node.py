"""A node as the host sees it: a set of namespaces with a kubelet, a containerd and a kube-proxy of its own.

One SIGKILL to its first process ends all of it at once, as a power failure would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.machine import build, lan
from tests.cluster.machine.image import PAUSE
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import DNS_SERVICE, GPU, MOST_NODES, NodePlaces, Places, Settings
from tests.cluster.machine.processes import ClusterError, Process, run, until

REPOSITORY = Path(__file__).resolve().parents[3]
CGROUPS = Path("/sys/fs/cgroup")
READY_WITHIN = 600.0  # five seconds; minutes where the machine has no time for it
GONE_WITHIN = 30.0  # the kernel ends a node's processes one after another
CONTAINERD = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true # a machine may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


class Node:
    """One node.

    Args:
        places: The cluster's.
        settings: What it is started with.
        index: Which node, from 0.
    """

    def __init__(self, places: Places, settings: Settings, index: int) -> None:
        if not 0 <= index < min(settings.nodes, MOST_NODES):
            raise ClusterError(f"there is no node {index}; the cluster was started with {settings.nodes}")
        self._node = NodePlaces(places, index)
        self._settings = settings
        self._kubectl = Kubectl(places, settings.programs)
        self._first = Process(self._node.name, self._node.folder / "first.process")

    def _configure(self) -> None:
        folder, pods = self._node.folder, self._node.pod_range
        networks = folder / "networks"
        networks.mkdir(parents=True, exist_ok=True)
        # Every pod has a cable of its own to the node, which routes: no bridge, so Services need no br_netfilter.
        ipam = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "ipMasq": False, "ipam": ipam}]
        (networks / "pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))
        (folder / "containerd.toml").write_text(
            CONTAINERD.format(pause=PAUSE, plugins=build.cni_folder(), networks=networks)
        )
        (folder / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\n")
        (folder / "kubelet.json").write_text(json.dumps(self._kubelet_configuration()))

    def _kubelet_configuration(self) -> dict[str, object]:
        configuration: dict[str, object] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self._node.places.certificates / "ca.crt")},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._node.link}",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "100Mi"},  # a full disk of the machine evicts nobody
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
            "imageGCLowThresholdPercent": 99,
            "resolvConf": str(self._node.folder / "resolv.conf"),
        }
        if grace := self._settings.grace:
            # A lease is renewed every quarter of its duration: five heartbeats in the grace period.
            configuration |= {"nodeLeaseDurationSeconds": max(1, grace * 4 // 5), "nodeStatusUpdateFrequency": "2s"}
        return configuration

    def start(self) -> None:
        """Starts the node, unless it runs, and waits until pods can be scheduled to it.

        After ``vanish`` this is a reboot: same disk, same Node object; containers of its pods are restarted.
        """
        if self._first.pid is None:
            self._configure()
            _make_cgroups(self._node.link)
            heartbeat = self._heartbeat("--ignore-not-found")
            self._boot()
            self._kubectl.watch(
                *self._lease(),
                line="{.spec.renewTime}",
                good=lambda time: time not in ("", heartbeat),
                what=f"{self._node.name} reports to the API server (its logs: {self._node.folder})",
                seconds=READY_WITHIN,
            )
        gpus = {"status": {"capacity": {GPU: str(self._settings.gpus)}}}
        self._kubectl("patch", "node", self._node.name, "--subresource=status", "--patch", json.dumps(gpus))
        escaped = GPU.replace(".", "\\.")
        self._kubectl.watch(
            "nodes",
            f"--field-selector=metadata.name={self._node.name}",
            line=f'{{.status.conditions[?(@.type=="Ready")].status}}|{{.status.allocatable.{escaped}}}|{{.spec.taints}}',
            good=lambda line: line == f"True|{self._settings.gpus}|",
            what=f"{self._node.name} is Ready, shows {self._settings.gpus} GPUs and has no taint",
            seconds=READY_WITHIN,
        )

    def _lease(self) -> tuple[str, ...]:
        return "leases", "--namespace=kube-node-lease", f"--field-selector=metadata.name={self._node.name}"

    def _heartbeat(self, *flags: str) -> str:
        return self._kubectl("get", *self._lease(), *flags, "-o", "jsonpath={.items[*].spec.renewTime}")

    def _boot(self) -> None:
        new = ("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork")
        first = [sys.executable, "-m", f"{__package__}.boot", str(self._node.places.state), str(self._node.index)]
        log_file = self._node.folder / "boot.log"
        with log_file.open("wb") as log:
            starter = subprocess.Popen(
                [*new, *first],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        assert starter.stdin is not None
        assert starter.stdout is not None
        with starter.stdout, starter.stdin:
            if pid := starter.stdout.readline():
                self._first.note(int(pid))
                lan.plug(self._node, int(pid))
                starter.stdin.write("plugged\n")
                starter.stdin.flush()
            if starter.stdout.readline() != "up\n":
                self.vanish()
                raise ClusterError(f"{self._node.name} does not start: {log_file.read_text().strip()}")

    def _running(self) -> int:
        if (pid := self._first.pid) is None:
            raise ClusterError(f"{self._node.name} is not running; `node {self._node.index} up` starts it")
        return pid

    def command(self, *argv: str) -> list[str]:
        """Returns the command that runs a command on the node."""
        return ["nsenter", "--target", str(self._running()), "-m", "-n", "-u", "-i", "-p", "--", *argv]

    def kubelet(self, what: str) -> None:
        """Starts the node's kubelet (``start``), or sends it a signal (``SIGSTOP``, ``SIGCONT``, ``SIGKILL``)."""
        place = (str(self._node.places.state), str(self._node.index))
        run(
            *self.command(sys.executable, "-m", f"{__package__}.boot", *place, "kubelet", what),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def cut(self) -> None:
        """Cuts its network: silence both ways, while everything on it runs on."""
        self._running()
        lan.cut(self._node)

    def mend(self) -> None:
        """Undoes a cut."""
        self._running()
        lan.mend(self._node)

    def vanish(self) -> None:
        """Ends it like a power failure: nothing gets out any more, no pod is told. Its disk stays."""
        if self._first.pid is not None:
            lan.cut(self._node)
        self._first.end(signal.SIGKILL)
        lan.unplug(self._node)
        # A kubelet that starts waits three seconds for each container whose cgroup has outlived it.
        until(lambda: _remove_cgroups(self._node.link), f"the cgroups of {self._node.name} are empty", GONE_WITHIN)


def _hierarchies() -> Iterator[Path]:
    """Yields the one hierarchy of cgroup v2, or each of v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        yield CGROUPS
    else:
        yield from (path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())


def _make_cgroups(name: str) -> None:
    if (controllers := CGROUPS / "cgroup.controllers").exists():  # v2: a kubelet wants all of them below its root
        enabled = " ".join(f"+{controller}" for controller in controllers.read_text().split())
        (CGROUPS / "cgroup.subtree_control").write_text(enabled)
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)


def _remove_cgroups(name: str) -> bool:
    """Removes those that have no process any more. Returns whether none is left."""
    roots = [hierarchy / name for hierarchy in _hierarchies()]
    for root in roots:
        for folder, _, _ in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    return not any(root.exists() for root in roots)
