"""A real Kueue on the machine's cluster: its released controller manager, as a process of the host, for one test.

It is built from its Go module, once, where a test first asks for it. Its CRDs and webhooks are those that the module
has; the webhooks are called for namespaces with its label alone, so that whatever else runs in the cluster is as
without it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.machine.build import provide_program
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import Places
from tests.cluster.machine.processes import ClusterError, Daemon, run, until

VERSION = "v0.17.0"
LABEL = "elastic-test-kueue"
"""Of namespaces whose Jobs this Kueue is to have."""
QUEUE = "kueue.x-k8s.io/queue-name"
KINDS = "kueue.x-k8s.io"
GROUP = f"{KINDS}/v1beta2"
FLAVOR = "elastic-test"
PORT = 19443
IN_ITS_PLACE = """
mount -t tmpfs none /etc
mkdir -p /etc/kueue/metrics/certs
cp "$1"/tls.* /etc/kueue/metrics/certs
exec "$2" --config="$3" --zap-log-level=2
"""
"""Gives the manager the one file that it looks for at a place of its own, which only it sees."""
ADDRESS = "127.0.0.1"
READY_SECONDS = 120.0
HOOKS = {
    "/mutate-batch-v1-job",
    "/validate-batch-v1-job",
    "/mutate-kueue-x-k8s-io-v1beta2-workload",
    "/validate-kueue-x-k8s-io-v1beta2-workload",
}


def program() -> Path:
    """Returns Kueue's manager; builds it where it is not in the cache: five minutes on two cores.

    Raises:
        ClusterError: If there is no Go, or the build fails.
    """
    return provide_program("kueue", "sigs.k8s.io/kueue/cmd/kueue", VERSION)


def _module() -> Path:
    """Returns the folder of Kueue's module, which Go has from the build."""
    found = json.loads(run("go", "mod", "download", "-json", f"sigs.k8s.io/kueue@{VERSION}"))
    return Path(found["Dir"])


def _certify(places: Places, folder: Path) -> None:
    """Makes the certificate with which the API server knows the webhooks."""
    authority = ("-CA", places.certificates / "ca.crt", "-CAkey", places.certificates / "ca.key")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "tls.key")
    names = ("-addext", f"subjectAltName=IP:{ADDRESS}", "-addext", "basicConstraints=CA:FALSE")
    run(
        "openssl",
        "req",
        "-x509",
        *key,
        "-days",
        "30",
        "-subj",
        "/CN=kueue",
        *authority,
        *names,
        "-out",
        folder / "tls.crt",
    )


def _hooks(places: Places, module: Path) -> list[dict[str, Any]]:
    """Returns the webhook configurations for Jobs and Workloads, with the host's address."""
    authority = base64.b64encode((places.certificates / "ca.crt").read_bytes()).decode()
    with open(module / "config/components/webhook/manifests.yaml", encoding="utf-8") as file:
        found = [one for one in yaml.safe_load_all(file) if one]
    for one in found:
        one["metadata"]["name"] = f"{LABEL}-{one['kind'].lower()}"
        one["webhooks"] = [hook for hook in one["webhooks"] if hook["clientConfig"]["service"]["path"] in HOOKS]
        for hook in one["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"] = {"url": f"https://{ADDRESS}:{PORT}{path}", "caBundle": authority}
            hook["namespaceSelector"] = {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}
    return found


def _configuration(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{ADDRESS}:{PORT + 1}"},
        "metrics": {"bindAddress": f"{ADDRESS}:{PORT + 2}"},
        "webhook": {"host": ADDRESS, "port": PORT, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
        **settings,
    }


@contextmanager
def kueue(kubectl: Kubectl, places: Places, folder: Path, **settings: Any) -> Iterator[Daemon]:
    """Runs Kueue; leaves nothing of it. Namespaces that use it have to be gone before.

    Args:
        kubectl: The cluster.
        places: Its files.
        folder: For its own; the test's.
        settings: Of its configuration, such as ``waitForPodsReady``.
    """
    manager, module = program(), _module()
    _certify(places, folder)
    configuration = folder / "kueue.json"
    configuration.write_text(json.dumps(_configuration(folder, settings)))
    daemon = Daemon("kueue", places.state / "kueue.process", places.state / "kueue.log")
    daemon.end()  # of a test that was killed
    bases = module / "config/components/crd/bases"
    hooks = _hooks(places, module)
    names = [(one["kind"], one["metadata"]["name"]) for one in hooks]
    try:
        kubectl("apply", "--server-side", "--validate=false", f"--filename={bases}")
        kubectl("wait", "--for=condition=Established", "--timeout=60s", f"--filename={bases}")
        own = ("env", f"KUBECONFIG={places.kubeconfig}", "unshare", "--mount", "sh", "-ec", IN_ITS_PLACE, "kueue")
        daemon.start([*own, folder, manager, configuration])

        def ready() -> bool:
            if daemon.pid is None:
                raise ClusterError(f"Kueue has ended; its log ends so:\n{daemon.last_words()}")
            try:
                return run("curl", "-sf", f"http://{ADDRESS}:{PORT + 1}/readyz") == "ok"
            except ClusterError:
                return False

        until(ready, "Kueue is ready", READY_SECONDS)
        kubectl.apply(*hooks)
        yield daemon
    finally:
        for kind, name in names:
            kubectl("delete", kind, name, "--ignore-not-found")
        with suppress(ClusterError):  # there may be none
            kubectl("wait", "--for=delete", f"workloads.{KINDS}", "--all", "-A", f"--timeout={READY_SECONDS:.0f}s")
        for kind in ("clusterqueues", "resourceflavors", "workloadpriorityclasses"):
            kubectl("delete", f"{kind}.{KINDS}", "--all", "--ignore-not-found")
        daemon.end()
        kubectl("delete", "--ignore-not-found", f"--filename={bases}")


def queues(space: str, **quotas: int) -> list[dict[str, Any]]:
    """Returns what a namespace needs of Kueue: a queue named ``gpus`` with these quotas."""
    flavor = {"name": FLAVOR, "resources": [{"name": name, "nominalQuota": quota} for name, quota in quotas.items()]}
    return [
        {"apiVersion": GROUP, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}},
        {
            "apiVersion": GROUP,
            "kind": "ClusterQueue",
            "metadata": {"name": space},
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": list(quotas), "flavors": [flavor]}],
            },
        },
        {
            "apiVersion": GROUP,
            "kind": "LocalQueue",
            "metadata": {"name": "gpus", "namespace": space},
            "spec": {"clusterQueue": space},
        },
    ]
