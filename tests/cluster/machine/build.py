"""What has to be on the machine: programs built from released Go modules, and Debian packages.

The programs lie in a cache outside the clone, under a name made from what they are built of.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from tests.cluster.machine.places import home
from tests.cluster.machine.processes import ClusterError, run

MODULE = Path(__file__).resolve().parents[1]
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
PACKAGES = {
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
    "etcd": "go.etcd.io/etcd/server/v3",  # not Debian's 3.4: informers want its progress notifications
    "pause": "./pause",
}
VERSION = "k8s.io/component-base/version"  # what its own makefile sets when it links
DEBIAN = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "loopback")


def cni_folder() -> Path | None:
    """Returns where the network plugins lie, or None where they are missing."""
    return next((f for f in CNI_FOLDERS if all((f / plugin).exists() for plugin in CNI_PLUGINS)), None)


def _missing_packages() -> list[str]:
    missing = {package for command, package in DEBIAN.items() if shutil.which(command) is None}
    return sorted(missing | (set() if cni_folder() else {"containernetworking-plugins"}))


def provide_packages() -> None:
    """Installs the Debian packages that are missing.

    Raises:
        ClusterError: If they cannot be installed here.
    """
    if not (missing := _missing_packages()):
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install what Debian calls {', '.join(missing)} (there is no apt-get to do it with)")
    print(f"installing {', '.join(missing)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", env=env)
    run("apt-get", "install", "-qy", "--no-install-recommends", *missing, env=env)
    if still := _missing_packages():
        raise ClusterError(f"apt-get installed {', '.join(still)}, but not all of it is found in PATH or {CNI_FOLDERS}")


def provide_programs() -> Path:
    """Returns the folder of the built programs; builds them when they are not in the cache.

    Raises:
        ClusterError: If there is no Go, or the build fails.
    """
    sources = [path.read_bytes() for path in (MODULE / "go.mod", MODULE / "go.sum", MODULE / "pause" / "main.go")]
    version = re.search(r"k8s\.io/kubernetes v((\d+)\.(\d+)\.\d+)", sources[0].decode())
    assert version is not None
    told = {"gitVersion": f"v{version[1]}", "gitMajor": version[2], "gitMinor": version[3]}
    link = " ".join(["-s -w", *(f"-X {VERSION}.{name}={value}" for name, value in told.items())])
    key = hashlib.sha256(b"".join([*sources, link.encode()])).hexdigest()[:16]
    folder = home("XDG_CACHE_HOME", ".cache") / key
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        raise ClusterError(f"install Go, at least as new as {MODULE / 'go.mod'} says, to build Kubernetes with")
    print(f"building Kubernetes {version[1]} into {folder}, once; about 6 minutes on two cores", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "CGO_ENABLED": "0"}
    flags = ("-trimpath", "-buildvcs=false", f"-ldflags={link}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as building:
        for name, package in PACKAGES.items():
            print(f"  {name}", flush=True)
            target = Path(building, "bin", name)
            run("go", "-C", MODULE, "build", *flags, "-o", target, package, env=env)
        Path(building, "bin").rename(folder)  # whole or not at all
    return folder


def provide_program(name: str, package: str, version: str, *flags: str) -> Path:
    """Returns a program of a Go module of its own; builds it where it is not in the cache.

    Args:
        name: What the cache calls it.
        package: That of the program; the last part of its path is the program's name.
        version: Of the module.
        *flags: More of ``go install``, such as ``-tags=``; of which the cache knows nothing.

    Raises:
        ClusterError: If there is no Go, or the build fails.
    """
    folder = home("XDG_CACHE_HOME", ".cache") / f"{name}-{version}"
    if not folder.exists():
        if shutil.which("go") is None:
            raise ClusterError(f"install Go to build {name} with")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as building:
            env = {**os.environ, "CGO_ENABLED": "0", "GOBIN": building}
            options = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w", *flags)
            run("go", "install", *options, f"{package}@{version}", env=env)
            Path(building).rename(folder)  # whole or not at all
            Path(building).mkdir()
    return folder / Path(package).name
