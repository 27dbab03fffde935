"""Keys, certificates and kubeconfigs: every component is who it is in a real cluster, so that RBAC holds for all."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.machine.places import API_SERVICE, API_URL, HOST_ADDRESS, MOST_NODES, NodePlaces, Places
from tests.cluster.machine.processes import run

DAYS = "365"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
API_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    **{f"node-{index}": f"/O=system:nodes/CN=system:node:node-{index}" for index in range(MOST_NODES)},
}


def _certificate(folder: Path, name: str, subject: str, *extensions: str) -> None:
    added: list[str | Path] = [word for extension in extensions for word in ("-addext", extension)]
    signer: list[str | Path] = [] if name == "ca" else ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"]
    files: list[str | Path] = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    run("openssl", "req", "-x509", *NEW_KEY, "-days", DAYS, "-subj", subject, *signer, *added, *files)


def kubeconfig(certificates: Path, client: str) -> str:
    """Returns the kubeconfig of a client."""
    cluster = {"server": API_URL, "certificate-authority": str(certificates / "ca.crt")}
    user = {"client-certificate": f"{certificates / client}.crt", "client-key": f"{certificates / client}.key"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": client, "user": user}],
            "contexts": [{"name": client, "context": {"cluster": "cluster", "user": client}}],
            "current-context": client,
        },
        indent=1,
    )


def provide(places: Places) -> None:
    """Makes all keys, certificates and kubeconfigs, unless they are there."""
    folder = places.certificates
    if places.kubeconfig.exists():
        return
    folder.mkdir(exist_ok=True)
    _certificate(folder, "ca", "/CN=elastic-launcher-test-cluster")
    addresses = [f"IP:{address}" for address in ("127.0.0.1", HOST_ADDRESS, API_SERVICE)]
    names = ",".join([*(f"DNS:{name}" for name in API_NAMES), *addresses])
    _certificate(folder, "api", "/CN=kube-apiserver", f"subjectAltName={names}", "basicConstraints=CA:FALSE")
    for client, subject in CLIENTS.items():
        _certificate(folder, client, subject, "extendedKeyUsage=clientAuth", "basicConstraints=CA:FALSE")
    # Not genpkey: the API server reads the public half only out of this format.
    run("openssl", "ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", folder / "accounts.key")
    for client in CLIENTS:
        (folder / f"{client}.kubeconfig").write_text(kubeconfig(folder, client))
    for index in range(MOST_NODES):
        node = NodePlaces(places, index)
        node.folder.mkdir(exist_ok=True)
        node.kubeconfig.write_text(kubeconfig(folder, node.name))
    places.kubeconfig.write_text(kubeconfig(folder, "admin"))
