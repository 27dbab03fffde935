"""Finds the API server and the credentials, in a kubeconfig or in the pod's service account."""

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
    """The address and the credentials of an API server.

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
        ConfigError: If there is none, what names it can't be used, or the client library is not installed.
    """
    try:
        from kubernetes import config
    except ImportError as error:
        raise ConfigError(f"a cluster needs {error.name}: pip install 'elastic-launcher[kubernetes]'") from error
    files = [path for path in _named().split(os.pathsep) if os.path.exists(path)]  # as kubectl reads them
    try:
        return _read(config, os.pathsep.join(files))
    except Exception as error:  # noqa: BLE001 - the library checks nothing of what it reads: any type may be wrong
        why = " ".join(str(error).split()) or type(error).__name__
        if files:
            where = os.pathsep.join(files)
            raise ConfigError(f"kubeconfig {where} can't be used ({why}): mend it, or set KUBECONFIG") from error
        raise ConfigError(f"no cluster is known: {_absent()}, and this is no pod of one ({why})") from error


def _read(config: Any, files: str) -> Login:
    """Returns what kubeconfigs say; where there are none, what a pod is given."""
    from kubernetes.client import Configuration

    found = Configuration()
    if files:
        config.load_kube_config(files, client_configuration=found)
        _, active = config.list_kube_config_contexts(files)
        namespace = str(active["context"].get("namespace") or "default")
    else:
        config.load_incluster_config(client_configuration=found)
        namespace = NAMESPACE_FILE.read_text().strip()
    if not found.host.startswith(("http://", "https://")):
        raise ValueError(f"its server is {found.host!r}; it must begin with https://")
    return Login(
        server=found.host.rstrip("/"),
        namespace=namespace,
        tls=_tls(found) if found.host.startswith("https:") else None,
        authorization=lambda: bearer_of(found),
        tls_server_name=found.tls_server_name,
        proxy=found.proxy,
    )


def bearer_of(found: Any) -> str:
    """Returns what the client library, by its configuration, proves itself with; "" where that is a certificate.

    It refreshes a token that is asked for.
    """
    # under which name a token is kept differs between its versions, how they show it does not
    return str((found.auth_settings().get("BearerToken") or {}).get("value") or "")


def _named() -> str:
    return os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")


def _absent() -> str:
    if os.environ.get("KUBECONFIG"):
        return f"KUBECONFIG names {_named()}, which is not there"
    return f"there is no {_named()}, KUBECONFIG is not set"


def _tls(found: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context
