"""Finds the cluster and the objects that a command names, and serves them or reads what was recorded there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_launcher.hints.reference import Reference, parse_reference
from elastic_launcher.kube.api import Api, find
from elastic_launcher.kube.login import Login, log_in
from elastic_launcher.options import ConfigError
from elastic_launcher.quota.cluster.record import HISTORY_KEY
from elastic_launcher.quota.cluster.rights import history_of
from elastic_launcher.quota.cluster.serve import Served, serve
from elastic_launcher.quota.history import rows_of


def serve_in_cluster(
    projects: str, hints: str, namespaces: Sequence[str], metrics_port: int | None, say: Callable[[str], None]
) -> None:
    """Writes the hints of a cluster's jobs until a signal ends it.

    Args:
        projects: The projects document: a file, or a ConfigMap.
        hints: The ConfigMap with the hints.
        namespaces: Those whose jobs count; none for all.
        metrics_port: Where Prometheus is answered, or None.
        say: Takes a line for the log.

    Raises:
        ConfigError: If no cluster is known, the hints are in no ConfigMap, or the port is taken.
    """
    login = log_in()
    document = parse_reference(projects)
    served = Served(
        _in_configmap(hints, login),
        Path(projects) if document is None else _placed(document, login),
        tuple(namespaces),
        metrics_port,
    )
    asyncio.run(_serve(login, served, say))


async def _serve(login: Login, served: Served, say: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(login, served, say, stop)


def read_history(hints: str) -> list[Mapping[str, Any]]:
    """Returns the changes that were recorded beside the hints of a ConfigMap, oldest first.

    Raises:
        ConfigError: If no cluster is known, or the hints are in no ConfigMap.
        ApiError: If the cluster refuses to show them, or can't be reached.
    """
    login = log_in()
    return asyncio.run(_read_history(login, _in_configmap(hints, login)))


async def _read_history(login: Login, hints: Reference) -> list[Mapping[str, Any]]:
    path = f"/api/v1/namespaces/{hints.namespace}/configmaps/{history_of(hints)}"
    async with Api(login) as api:
        found = await find(api, path)
    return list(rows_of(str(((found or {}).get("data") or {}).get(HISTORY_KEY, "")).split("\n")))


def _in_configmap(hints: str, login: Login) -> Reference:
    reference = parse_reference(hints)
    if reference is None:
        raise ConfigError(f"--hints {hints} is no ConfigMap: it must be configmap/NAME or configmap/NAMESPACE/NAME")
    return _placed(reference, login)


def _placed(reference: Reference, login: Login) -> Reference:
    return replace(reference, namespace=reference.namespace or login.namespace)
