"""etcd, API server, controller manager and scheduler, as processes of the host."""

from __future__ import annotations

import json

from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import DNS_SERVICE, HOST_ADDRESS, POD_RANGE, SERVICE_RANGE, Places, Settings
from tests.cluster.machine.processes import ClusterError, Daemon, until

ANSWERS_WITHIN = 900.0  # three to ten seconds; four minutes at the lowest priority on a machine ten times too busy
ETCD = "http://127.0.0.1:2379"
# What the cluster does of its own accord is left out: one reads there what pods and people asked for.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:nodes"]},
        {"level": "None", "users": ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"]},
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}
# There is no DNS. A Service that nothing answers for refuses at once; without one, look-ups would time out.
NO_DNS = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "kube-dns", "namespace": "kube-system"},
    "spec": {
        "clusterIP": DNS_SERVICE,
        "ports": [{"name": n, "port": 53, "protocol": n.upper()} for n in ("udp", "tcp")],
    },
}


class ControlPlane:
    """The processes that make a cluster of nodes.

    Args:
        places: The cluster's.
        settings: What it is started with.
    """

    def __init__(self, places: Places, settings: Settings) -> None:
        self._places = places
        self._settings = settings
        self._kubectl = Kubectl(places, settings.programs)
        self.api_server = self._daemon("kube-apiserver")

    def _daemon(self, name: str) -> Daemon:
        return Daemon(name, self._places.state / f"{name}.process", self._places.state / f"{name}.log")

    def _etcd(self) -> list[str]:
        return [
            f"--data-dir={self._places.state / 'etcd'}",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # a test cluster may lose its last seconds when the machine dies
        ]

    def _api_server(self) -> list[str]:
        certificates, state = self._places.certificates, self._places.state
        return [
            f"--etcd-servers={ETCD}",
            f"--bind-address={HOST_ADDRESS}",
            f"--advertise-address={HOST_ADDRESS}",
            "--secure-port=6443",
            f"--tls-cert-file={certificates / 'api.crt'}",
            f"--tls-private-key-file={certificates / 'api.key'}",
            f"--client-ca-file={certificates / 'ca.crt'}",
            f"--kubelet-client-certificate={certificates / 'kubelet-client.crt'}",
            f"--kubelet-client-key={certificates / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",  # nobody resolves the nodes' names
            f"--service-account-key-file={certificates / 'accounts.key'}",
            f"--service-account-signing-key-file={certificates / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",  # besides LimitRanger, ResourceQuota, PodSecurity and others
            f"--audit-policy-file={state / 'audit-policy.json'}",
            f"--audit-log-path={self._places.audit_log}",
            "--audit-log-maxsize=200",
            "--shutdown-watch-termination-grace-period=1s",  # else it waits a minute for those who watch
            "--audit-log-maxbackup=1",
        ]

    def _controller_manager(self) -> list[str]:
        certificates, grace = self._places.certificates, self._settings.grace
        sooner = [f"--node-monitor-grace-period={grace}s", "--node-monitor-period=1s"] if grace else []
        return [
            f"--kubeconfig={certificates / 'controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={certificates / 'accounts.key'}",
            f"--root-ca-file={certificates / 'ca.crt'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--cluster-cidr={POD_RANGE}",
            "--secure-port=0",
            "--pvclaimbinder-sync-period=1s",  # a claim that is seen before its volume waits for this, by default 15 s
            *sooner,
        ]

    def _scheduler(self) -> list[str]:
        kubeconfig = self._places.certificates / "scheduler.kubeconfig"
        return [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"]

    def _start(self, daemon: Daemon, flags: list[str]) -> None:
        daemon.start([self._settings.programs / daemon.name, *flags])

    def start_api_server(self) -> None:
        """Starts the API server, unless it runs, and waits until it answers."""
        self._start(self.api_server, self._api_server())

        def answers() -> bool:
            for daemon in (self._daemon("etcd"), self.api_server):
                if daemon.pid is None:
                    raise ClusterError(f"{daemon.name} has ended; {daemon.log} ends so:\n{daemon.last_words()}")
            return self._kubectl.ready()

        until(answers, f"the API server answers (its log: {self.api_server.log})", ANSWERS_WITHIN)

    def start(self) -> None:
        """Starts what does not run, and waits until the API server answers."""
        (self._places.state / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
        self._start(self._daemon("etcd"), self._etcd())
        self.start_api_server()
        self._start(self._daemon("kube-controller-manager"), self._controller_manager())
        self._start(self._daemon("kube-scheduler"), self._scheduler())
        self._kubectl.apply(NO_DNS)

    def end(self) -> None:
        """Ends everything, the API server before what it needs."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._daemon(name).end()
