"""Which API server, and as whom: from a kubeconfig or from the pod's own service account."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_launcher.options import ConfigError

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Login:
    """How an API server is spoken to.

    Attributes:
        server: Its URL.
        namespace: What is meant where none is named.
        tls: What its certificate is judged by; None without TLS.
        authorization: Returns what each request proves itself with, as fresh as need be; "" where a certificate does.
        tls_server_name: What its certificate says, where that is not the URL's host.
        proxy: What leads to it, or None.
    """

    server: str
    namespace: str
    tls: ssl.SSLContext | None = None
    authorization: Callable[[], str] = str
    tls_server_name: str | None = None
    proxy: str | None = None


def log_in() -> Login:
    """Returns how the cluster is spoken to that KUBECONFIG, ~/.kube/config, or else the pod that this runs in names.

    Raises:
        ConfigError: If there is none, or the client library is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigError(f"a cluster needs {error.name}: pip install 'elastic-launcher[kubernetes]'") from error
    found = client.Configuration()
    try:
        if _kubeconfigs():
            config.load_kube_config(client_configuration=found)
        else:
            config.load_incluster_config(client_configuration=found)
    except config.ConfigException as error:
        place = f"of {os.pathsep.join(_kubeconfigs())}" if _kubeconfigs() else "here: there is no kubeconfig, nor a pod"
        raise ConfigError(f"no cluster is known {place} ({error}); set KUBECONFIG") from error
    return Login(
        server=found.host.rstrip("/"),
        namespace=_namespace(config),
        tls=_tls(found) if found.host.startswith("https:") else None,
        authorization=lambda: found.get_api_key_with_prefix("authorization") or "",
        tls_server_name=found.tls_server_name,
        proxy=found.proxy,
    )


def _kubeconfigs() -> list[str]:
    """Returns the files that kubectl would read, as far as they are there."""
    named = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    return [path for path in named.split(os.pathsep) if os.path.exists(path)]


def _namespace(config: Any) -> str:
    if _kubeconfigs():
        _, active = config.list_kube_config_contexts()
        return str(active["context"].get("namespace") or "default")
    return NAMESPACE_FILE.read_text().strip()


def _tls(found: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context
