"""A node's first process, in fresh namespaces: sets the node up, starts what runs on it, and then only reaps.

``python -m tests.cluster.machine.boot STATE INDEX``; with ``kubelet start|SIGNAL`` it starts or signals the kubelet
of a node that runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from tests.cluster.machine import lan
from tests.cluster.machine.places import HOST_ADDRESS, HOST_MAC, POD_RANGE, NodePlaces, Places, Settings
from tests.cluster.machine.processes import ClusterError, Daemon, run, until

CONTAINERD = "/run/containerd/containerd.sock"
STARTS_WITHIN = 300.0  # containerd opens its socket within a second on an idle machine


def _own_files(node: NodePlaces) -> None:
    """Gives the node what no two nodes may share: kubelets would clear each other's pods away."""
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    Path("/run/lock").mkdir()
    for folder in ("/var/lib", "/var/log"):
        own = node.disk / folder.strip("/")
        own.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", own, folder)


def _own_network(node: NodePlaces) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "neigh", "replace", HOST_ADDRESS, "lladdr", HOST_MAC, "dev", "eth0", "nud", "permanent")
    run("ip", "route", "add", "default", "via", HOST_ADDRESS)
    lan.neighbours(node.places, "eth0", own=node.index)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _daemon(node: NodePlaces, name: str) -> Daemon:
    return Daemon(name, Path("/run", f"{name}.process"), node.folder / f"{name}.log")


def _containerd(node: NodePlaces) -> None:
    daemon = _daemon(node, "containerd")
    daemon.start([shutil.which("containerd") or "containerd", "--config", node.folder / "containerd.toml"])

    def answers() -> bool:
        if daemon.pid is None:
            raise ClusterError(f"containerd has ended; {daemon.log} ends so:\n{daemon.last_words()}")
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(CONTAINERD) == 0

    until(answers, f"containerd answers (its log: {daemon.log})", STARTS_WITHIN)
    for archive in sorted(node.places.images.glob("*.tar")):
        run("ctr", "--namespace=k8s.io", "images", "import", archive)


def _kube_proxy(node: NodePlaces, settings: Settings) -> None:
    _daemon(node, "kube-proxy").start(
        [
            settings.programs / "kube-proxy",
            f"--kubeconfig={node.places.certificates / 'kube-proxy.kubeconfig'}",
            f"--hostname-override={node.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_RANGE}",
            "--conntrack-max-per-core=0",  # it is the whole machine's
        ]
    )


def _kubelet(node: NodePlaces, settings: Settings) -> None:
    _daemon(node, "kubelet").start(
        [
            settings.programs / "kubelet",
            f"--kubeconfig={node.kubeconfig}",
            f"--config={node.folder / 'kubelet.json'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
        ]
    )


def _boot(node: NodePlaces, settings: Settings) -> None:
    # /proc is still the host's: this is the number by which the host knows this process.
    print(Path("/proc/self/stat").read_text().split()[0], flush=True)
    _own_files(node)
    socket.sethostname(node.name)
    sys.stdin.readline()  # comes when the cable is plugged in
    _own_network(node)
    _containerd(node)
    _kube_proxy(node, settings)
    _kubelet(node, settings)
    print("up", flush=True)
    sys.stdin.close()
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # the command that started the node goes its way
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


def main(argv: list[str]) -> int:
    """Runs as the module's docstring says."""
    places = Places(Path(argv[0]))
    node, settings = NodePlaces(places, int(argv[1])), places.settings()
    assert settings is not None
    try:
        match argv[2:]:
            case []:
                _boot(node, settings)
            case ["kubelet", "start"]:
                _kubelet(node, settings)
            case ["kubelet", name]:
                if (pid := _daemon(node, "kubelet").pid) is None:
                    raise ClusterError(f"{node.name}'s kubelet is not running; `kubelet start` starts it")
                os.kill(pid, signal.Signals[name])
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
