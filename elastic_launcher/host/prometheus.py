"""Answers Prometheus at a port of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from elastic_launcher.options import ConfigError

PREFIX = "elastic_launcher_"
"""Of the names of all metrics."""


@contextlib.contextmanager
def serving(port: int, collector: Collector) -> Iterator[None]:
    """Answers ``GET /metrics`` at a port while the block runs.

    Args:
        port: On all addresses.
        collector: Yields the metrics, in a thread of the server.

    Raises:
        ConfigError: If the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics-port {port} can't be listened at ({error.strerror}): choose another") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
