"""Where the cluster's files lie and which addresses it has. One cluster a machine: the addresses are fixed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_NODES = 4
HOST_ADDRESS = "10.245.0.1"
HOST_MAC = "02:00:0a:f5:00:01"
API_URL = f"https://{HOST_ADDRESS}:6443"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
GPU = "nvidia.com/gpu"


def home(variable: str, otherwise: str) -> Path:
    """Returns this project's folder in one of the XDG base directories."""
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / otherwise) / "elastic-launcher" / "cluster"


@dataclass(frozen=True)
class Settings:
    """What a cluster was started with.

    Attributes:
        programs: The folder of the built binaries.
        nodes: How many nodes it has.
        gpus: How many GPUs each node shows. Nothing enforces them.
        grace: Seconds after which a silent node counts as lost; None for Kubernetes' own 50.
    """

    programs: Path
    nodes: int = 2
    gpus: int = 8
    grace: int | None = None


@dataclass(frozen=True)
class Places:
    """The files of one cluster, all of them below its state folder."""

    state: Path

    @classmethod
    def default(cls) -> Places:
        """Returns those of this user's cluster."""
        return cls(home("XDG_STATE_HOME", ".local/state"))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "admin.kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.state / "certificates"

    @property
    def images(self) -> Path:
        """Archives that each node imports when it starts."""
        return self.state / "images"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line for each request to the API server that a person or a pod made."""
        return self.state / "audit.log"

    def save(self, settings: Settings) -> None:
        """Notes what the cluster is started with, for the commands that follow."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.state / "settings.json").write_text(json.dumps(asdict(settings), default=str))

    def settings(self) -> Settings | None:
        """Returns what the cluster was started with, or None if there is no cluster."""
        try:
            saved = json.loads((self.state / "settings.json").read_text())
        except FileNotFoundError:
            return None
        return Settings(**{**saved, "programs": Path(saved["programs"])})


@dataclass(frozen=True)
class NodePlaces:
    """One node's name, addresses and files."""

    places: Places
    index: int

    @property
    def name(self) -> str:
        return f"node-{self.index}"

    @property
    def link(self) -> str:
        """The host's end of its cable, and its cgroup."""
        return f"elastic-{self.name}"

    @property
    def address(self) -> str:
        return f"10.245.0.{10 + self.index}"

    @property
    def mac(self) -> str:
        return f"02:00:0a:f5:00:{10 + self.index:02x}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def folder(self) -> Path:
        return self.places.state / self.name

    @property
    def disk(self) -> Path:
        """What outlives a power failure: its /var/lib and /var/log."""
        return self.folder / "disk"

    @property
    def kubeconfig(self) -> Path:
        """The kubelet's."""
        return self.folder / "kubelet.kubeconfig"
